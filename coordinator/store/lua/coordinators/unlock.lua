-- unlock: give a lock back before it expires.
-- Protects: only the holder gives a lock back.
-- Role: worker
-- Keys: lock
-- ARGV: lock, token
--   lock: name of the lock
--   token: of the holder
-- Flags: allow-oom
-- Unconfirmed: a lock that comes back after a failover expires by itself
-- Answers: ok, held
local holder = redis.call('GET', lock_key(lock))
if holder and holder ~= token then return { 'held' } end
redis.call('DEL', lock_key(lock)) -- A repetition finds no lock, and ok is still the right answer.
return { 'ok' }
