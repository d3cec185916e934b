-- unlock: release a lock before it expires.
-- Protects: only the holder releases a lock.
-- Role: worker
-- Keys: lock
-- ARGV: lock, token
--   lock: name of the lock
--   token: the token of the holder
-- Flags: allow-oom
-- Unconfirmed: a lock that comes back after a failover expires by itself
-- Answers: ok, held
local holder = redis.call('GET', lock_key(lock))
if holder and holder ~= token then return { 'held' } end
redis.call('DEL', lock_key(lock)) -- A repetition finds no lock, and ok is still the right answer.
return { 'ok' }
