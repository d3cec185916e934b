-- roll: asks the supervisors of a fleet to replace their processes, one supervisor after the other.
-- Protects: one roll of a fleet at a time; the same call again changes nothing; who was not seen lately is not waited for.
-- ARGV: now, fleet, roll, at_once, by, silence
-- Flags: allow-oom
-- Uses: time
-- Answers: ok, busy, nobody
local clock = server_ms(now)
local before = redis.call('HMGET', roll_key(fleet), 'roll', 'by', 'asked')
if before[1] == roll then return { 'ok' } end
local there = redis.call('ZRANGEBYSCORE', supervisors_key(fleet), int(clock - tonumber(silence)), '+inf', 'LIMIT', 0, 1000)
if #there == 0 then return { 'nobody' } end
if before[1] then
  for i = 1, #there do
    local part = redis.call('HGET', roll_key(fleet), 'part:' .. there[i])
    if part and (string.match(part, '^waiting') or string.match(part, '^going')) then
      return { 'busy', before[2], int(clock - tonumber(before[3])) }
    end
  end
end

redis.call('DEL', roll_key(fleet))
redis.call('HSET', roll_key(fleet), 'roll', roll, 'by', by, 'asked', int(clock), 'at_once', at_once)
for i = 1, #there do
  redis.call('HSET', roll_key(fleet), 'part:' .. there[i], 'waiting')
  redis.call('RPUSH', inbox_key(there[i]), 'roll')
  redis.call('LTRIM', inbox_key(there[i]), -1000, -1)
  redis.call('PEXPIRE', inbox_key(there[i]), 60000)
end
redis.call('PEXPIRE', roll_key(fleet), 3600000)
return { 'ok' }
