-- upcoming: the schedules that are to be looked at now, and when the next one is. What is no schedule is tidied up on the way.
-- ARGV: now, batch
-- Flags: allow-oom
-- Uses: time, run, schedule
-- Unconfirmed: it only looks
-- Answers: ok
local clock = server_ms(now)
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', schedules_key(), '-inf', int(clock), 'LIMIT', 0, batch)) do
  local schedule, other = read_schedule(name)
  if other then
    look_at(name, int(clock + 60000))
  elseif not schedule or schedule.state == 'removed' then
    redis.call('UNLINK', schedule_key(name))
    redis.call('ZREM', schedules_key(), name)
  elseif schedule.state ~= 'active' then
    look_at(name, NEVER)
  else
    found[#found + 1] = { name, schedule.generation, schedule.after, schedule.next, schedule.offset, schedule.rules or '' }
  end
end

local first = redis.call('ZRANGE', schedules_key(), 0, 0, 'WITHSCORES')
return { 'ok', found, first[1] and int(tonumber(first[2])) or '', int(clock) }
