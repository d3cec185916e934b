-- upcoming: answer the schedules that a coordinator has to fire now, and when the next one is due. Entries of the list that have
-- no schedule any more are removed.
-- Role: coordinator
-- Keys: namespace, schedule, schedules
-- ARGV: now, batch
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   batch: the largest number of schedules to answer
-- Flags: allow-oom
-- Uses: time, schedule
-- Unconfirmed: the script only reads
-- Answers: ok
--   ok: with the schedules, the time at which the next one is due, and the server's time
local clock = server_ms(now)
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', schedules_key(), '-inf', int(clock), 'LIMIT', 0, batch)) do
  local schedule, other_type = read_schedule(name)
  if other_type then
    look_again_at(name, int(clock + 60000))
  elseif not schedule or schedule.state == 'removed' then
    redis.call('UNLINK', schedule_key(name))
    redis.call('ZREM', schedules_key(), name)
  elseif schedule.state ~= 'active' then
    look_again_at(name, int(FAR_FUTURE))
  else
    found[#found + 1] = { name, schedule.generation, schedule.after, schedule.next, schedule.offset, schedule.rules or '' }
  end
end

local first, time = unpack(redis.call('ZRANGE', schedules_key(), 0, 0, 'WITHSCORES'))
return { 'ok', found, first and int(tonumber(time)) or '', int(clock) }
