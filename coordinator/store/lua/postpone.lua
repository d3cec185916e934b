-- postpone: a coordinator can make nothing of a schedule: it says why, and that it is looked at again later.
-- Protects: a schedule that somebody else has fired or changed meanwhile is left alone.
-- ARGV: now, name, generation, expected, why, wait
-- Flags: allow-oom
-- Uses: time, run, schedule
-- Unconfirmed: what is not postponed is looked at again
-- Answers: ok, changed
local clock = server_ms(now)
local schedule = read_schedule(name)
if not schedule or schedule.generation ~= generation or schedule.state ~= 'active' or schedule.next ~= expected then
  return { 'changed' }
end

redis.call('HSET', schedule_key(name), 'why', why)
look_at(name, int(clock + tonumber(wait)))
return { 'ok' }
