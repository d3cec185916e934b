-- postpone: store the reason why a coordinator could not fire a schedule, and set the time at which a coordinator tries again.
-- Protects: a schedule that was fired or changed since is not touched.
-- Role: coordinator
-- Keys: namespace, schedule, schedules
-- ARGV: now, name, generation, expected, why, wait
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   name: name of the schedule
--   generation: the generation of the schedule that the coordinator read
--   expected: the fire time that the coordinator read
--   why: the reason, as text for people
--   wait: ms until a coordinator tries again
-- Flags: allow-oom
-- Uses: time, schedule
-- Unconfirmed: a coordinator tries a schedule that is not postponed again at its next tick
-- Answers: ok, changed
local clock = server_ms(now)
local schedule = read_schedule(name)
if not schedule or schedule.generation ~= generation or schedule.state ~= 'active' or schedule.next ~= expected then
  return { 'changed' }
end

redis.call('HSET', schedule_key(name), 'why', why)
look_again_at(name, int(clock + tonumber(wait)))
return { 'ok' }
