-- supervise: a supervisor is there, or leaves; it is told of a roll in which it has a part.
-- Protects: a roll waits for nobody who is gone.
-- ARGV: now, fleet, supervisor, leaves
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: a supervisor says every few seconds that it is there
-- Answers: ok
local clock = server_ms(now)
local roll = redis.call('HMGET', roll_key(fleet), 'roll', 'at_once', 'part:' .. supervisor)
local state, counts = string.match(roll[3] or '', '^(%a+)(.*)$')
local unfinished = state == 'waiting' or state == 'going'

if leaves == '1' then
  redis.call('ZREM', supervisors_key(fleet), supervisor)
  redis.call('DEL', inbox_key(supervisor))
  if unfinished then redis.call('HSET', roll_key(fleet), 'part:' .. supervisor, 'left' .. counts) end
  return { 'ok' }
end
redis.call('ZADD', supervisors_key(fleet), int(clock), supervisor)
redis.call('ZREMRANGEBYSCORE', supervisors_key(fleet), '-inf', int(clock - 60000))
redis.call('PEXPIRE', supervisors_key(fleet), 60000)

if not (roll[1] and roll[3]) then return { 'ok' } end
if unfinished then redis.call('PEXPIRE', roll_key(fleet), 3600000) end
return { 'ok', roll[1], roll[2], roll[3] }
