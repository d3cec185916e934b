-- supervise: record that a supervisor runs, or that it leaves, and answer the roll in which it has a part.
-- Protects: a roll does not wait for a supervisor that is gone.
-- Role: worker
-- Keys: inbox, namespace, roll, supervisors
-- ARGV: now, fleet, supervisor, leaves, renews
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   fleet: name of the fleet
--   supervisor: id of the supervisor
--   leaves: 1 if the supervisor shuts down
--   renews: 1 to renew the expiry of the key, and to remove the supervisors that were not seen for a minute
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: a supervisor sends this every few seconds
-- Answers: ok
--   ok: with the roll, at_once and the supervisor's part, if there is a roll
local clock = server_ms(now)
local roll, at_once, part = unpack(redis.call('HMGET', roll_key(fleet), 'roll', 'at_once', 'part:' .. supervisor))
local state, counts = string.match(part or '', '^(%a+)(.*)$')
local unfinished = state == 'waiting' or state == 'going'

if leaves == '1' then
  redis.call('ZREM', supervisors_key(fleet), supervisor)
  redis.call('DEL', inbox_key(supervisor))
  if unfinished then redis.call('HSET', roll_key(fleet), 'part:' .. supervisor, 'left' .. counts) end
  return { 'ok' }
end
redis.call('ZADD', supervisors_key(fleet), int(clock), supervisor)
if renews == '1' then
  redis.call('ZREMRANGEBYSCORE', supervisors_key(fleet), '-inf', int(clock - SEEN_MS))
  redis.call('PEXPIRE', supervisors_key(fleet), SEEN_MS)
end

if not (roll and part) then return { 'ok' } end
if unfinished then redis.call('PEXPIRE', roll_key(fleet), ROLL_MS) end
return { 'ok', roll, at_once, part }
