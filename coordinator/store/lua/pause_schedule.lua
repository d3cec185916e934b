-- pause_schedule: a schedule fires no more, or again. Fire times that pass meanwhile are not missed: they are not meant.
-- Protects: a call that is sent twice or late does not undo a later one.
-- ARGV: now, name, seen, generation, paused
-- Flags: allow-oom
-- Uses: time, run, schedule
-- Answers: ok, changed, missing
local clock = server_ms(now)
local schedule = read_schedule(name)
local refused = change_refused(schedule, name, seen, generation)
if refused then return refused end

local state = paused == '1' and 'paused' or 'active'
redis.call('HSET', schedule_key(name), 'generation', generation)
if schedule.state ~= state then
  redis.call('HSET', schedule_key(name), 'state', state, 'after', int(clock), 'next', '', 'due', '')
  redis.call('HDEL', schedule_key(name), 'why')
  look_at(name, paused == '1' and NEVER or int(clock))
end
return { 'ok' }
