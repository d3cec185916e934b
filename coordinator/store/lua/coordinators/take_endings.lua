-- take_endings: take the endings of runs for which no worker reports a span, and keep the list to which scripts add them.
-- Role: coordinator
-- Keys: unreported
-- ARGV: most
--   most: the largest number of entries to take
-- Flags: allow-oom
-- Unconfirmed: the span of an entry that is lost in a failover is not reported
-- Answers: ok
--   ok: with the entries, oldest first; shared/unreported.lua describes them. The entry `open` is not an ending; it keeps the list
local entries = redis.call('LRANGE', unreported_key(), 0, tonumber(most) - 1)
redis.call('LTRIM', unreported_key(), most, -1)
-- Other scripts write to the list only while it exists, so it is never left empty.
if redis.call('EXISTS', unreported_key()) == 0 then redis.call('RPUSH', unreported_key(), 'open') end
redis.call('PEXPIRE', unreported_key(), UNREPORTED_MS)
return { 'ok', entries }
