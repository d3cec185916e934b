-- unschedule: removes a schedule. For ten minutes it is known that it was there: upcoming forgets it then.
-- Protects: a call that is sent twice or late does not undo a later one, and no late one brings the schedule back.
-- ARGV: now, name, seen, generation
-- Flags: allow-oom
-- Uses: time, run, schedule
-- Answers: ok, changed, missing
local clock = server_ms(now)
local schedule, other = read_schedule(name)
if schedule and schedule.state == 'removed' and schedule.generation == generation then
  redis.call('HSET', schedule_key(name), 'generation', generation)
  return { 'ok' }
end
local refused = not other and change_refused(schedule, name, seen, generation)
if refused then return refused end

redis.call('UNLINK', schedule_key(name))
redis.call('HSET', schedule_key(name), 'generation', generation, 'state', 'removed')
if schedule and schedule.last then redis.call('HSET', schedule_key(name), 'last', schedule.last) end
look_at(name, int(clock + 600000))
return { 'ok' }
