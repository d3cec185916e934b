-- lock: take or renew a lock for a limited time.
-- Protects: a lock has one holder at a time, known by its token.
-- Role: worker, coordinator
-- Keys: lock
-- ARGV: lock, token, ttl
--   lock: name of the lock
--   token: the token of the holder
--   ttl: ms after which the lock expires
-- Flags: allow-oom
-- Unconfirmed: a lock saves work; the scripts called under it are safe without it
-- Answers: ok, held
local holder = redis.call('GET', lock_key(lock))
if holder and holder ~= token then return { 'held' } end
redis.call('SET', lock_key(lock), token, 'PX', ttl)
return { 'ok' }
