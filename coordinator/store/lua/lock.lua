-- lock: takes or keeps a lock for a while.
-- Protects: one holder at a time, told apart by its token.
-- ARGV: lock, token, ttl
-- Flags: allow-oom
-- Unconfirmed: a lock saves work, safety comes from what is done under it
-- Answers: ok, held
local holder = redis.call('GET', lock_key(lock))
if holder and holder ~= token then return { 'held' } end
redis.call('SET', lock_key(lock), token, 'PX', ttl)
return { 'ok' }
