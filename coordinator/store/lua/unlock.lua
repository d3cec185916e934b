-- unlock: gives a lock back before its time is over.
-- Protects: only who holds it gives it back.
-- ARGV: lock, token
-- Flags: allow-oom
-- Unconfirmed: a lock that comes back runs out by itself
-- Answers: ok, held
local holder = redis.call('GET', lock_key(lock))
if holder and holder ~= token then return { 'held' } end
redis.call('DEL', lock_key(lock)) -- a repetition finds nothing, and is as right
return { 'ok' }
