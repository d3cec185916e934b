-- unschedule: remove a schedule. It stays known for ten minutes, after which `upcoming` forgets it.
-- Protects: a call that is sent twice or late does not undo a later one, and no late call brings the schedule back.
-- Role: producer
-- Keys: namespace, schedule, schedules
-- ARGV: now, name, seen, generation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   name: name of the schedule
--   seen: the generation that the caller has seen; empty: there was no schedule
--   generation: of this change; a repetition has the same
-- Flags: allow-oom
-- Uses: time, schedule
-- Answers: ok, changed, missing
local clock = server_ms(now)
local schedule, other_type = read_schedule(name)
if schedule and schedule.state == 'removed' and schedule.generation == generation then
  redis.call('HSET', schedule_key(name), 'generation', generation)
  return { 'ok' }
end
local refusal = not other_type and refuse_change(schedule, name, seen, generation)
if refusal then return refusal end

redis.call('UNLINK', schedule_key(name))
redis.call('HSET', schedule_key(name), 'generation', generation, 'state', 'removed')
if schedule and schedule.last then redis.call('HSET', schedule_key(name), 'last', schedule.last) end
look_again_at(name, int(clock + REMOVED_MS))
return { 'ok' }
