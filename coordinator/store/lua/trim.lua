-- trim: forgets ended runs whose retention is over, and old entries that were set aside.
-- ARGV: now, cap
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: what is left is trimmed by the next tick
-- Answers: ok
local clock = server_ms(now)
local gone = 0
for _, status in ipairs({ 'completed', 'failed', 'cancelled', 'dead' }) do
  local over = redis.call('ZRANGEBYSCORE', ended_key(status), '-inf', int(clock), 'LIMIT', 0, 1000)
  for i = 1, #over do redis.call('ZREM', ended_key(status), over[i]) end
  gone = gone + #over
end
redis.call('ZREMRANGEBYRANK', aside_key(), 0, -1 - tonumber(cap))
redis.call('ZREMRANGEBYSCORE', aside_key(), '-inf', int(clock - 604800000))
return { 'ok', gone }
