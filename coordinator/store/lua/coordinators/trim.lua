-- trim: remove ended runs whose retention is over from their lists, and old entries from `aside`, the list of unreadable entries.
-- Role: coordinator
-- Keys: aside, ended, namespace
-- ARGV: now, cap
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   cap: the largest number of entries of `aside` to keep
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: entries that are left are removed at the next tick
-- Answers: ok
--   ok: with the number of ended runs that were removed
local clock = server_ms(now)
local gone = 0
for _, status in ipairs(ENDED_STATUSES) do
  local over = redis.pcall('ZRANGEBYSCORE', ended_key(status), '-inf', int(clock), 'LIMIT', 0, 1000)
  for i = 1, #over do redis.call('ZREM', ended_key(status), over[i]) end
  gone = gone + #over
end
redis.pcall('ZREMRANGEBYRANK', aside_key(), 0, -1 - tonumber(cap))
redis.pcall('ZREMRANGEBYSCORE', aside_key(), '-inf', int(clock - WEEK_MS))
return { 'ok', gone }
