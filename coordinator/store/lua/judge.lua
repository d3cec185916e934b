-- judge: looks at the leases, notes that a coordinator is there, and answers which workers are to be recovered now.
-- Protects: an outage, a failover, a paused server or a clock step is not taken for the death of workers.
-- ARGV: now, coordinator, tick, most
-- Flags: allow-oom
-- Uses: time, judge
-- Unconfirmed: leases are judged again each tick
-- Answers: ok
local clock = server_ms(now)
local hold_until = judge(clock, tonumber(tick))
redis.call('ZADD', coordinators_key(), int(clock), coordinator)
redis.call('ZREMRANGEBYSCORE', coordinators_key(), '-inf', int(clock - 60000))

local top = clock < hold_until and '0' or int(clock)
return { 'ok', redis.call('ZRANGEBYSCORE', workers_key(), '-inf', top, 'LIMIT', 0, most), int(hold_until), int(clock) }
