-- pause_schedule: pause or resume a schedule. Fire times that pass while the schedule is paused create no runs later.
-- Protects: a call that is sent twice or late does not undo a later one.
-- Role: producer
-- Keys: namespace, schedule, schedules
-- ARGV: now, name, seen, generation, paused
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   name: name of the schedule
--   seen: the generation that the caller has seen; empty: there was no schedule
--   generation: the generation of this change; a repeated call has the same
--   paused: 1 to pause, 0 to resume
-- Flags: allow-oom
-- Uses: time, schedule
-- Answers: ok, changed, missing
local clock = server_ms(now)
local schedule = read_schedule(name)
local refusal = refuse_change(schedule, name, seen, generation)
if refusal then return refusal end

local state = paused == '1' and 'paused' or 'active'
redis.call('HSET', schedule_key(name), 'generation', generation, 'past', extend_past(schedule))
if schedule.state ~= state then
  redis.call('HSET', schedule_key(name), 'state', state, 'after', int(clock), 'next', '', 'due', '')
  redis.call('HDEL', schedule_key(name), 'why')
  look_again_at(name, paused == '1' and int(FAR_FUTURE) or int(clock))
end
return { 'ok' }
