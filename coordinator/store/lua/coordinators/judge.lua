-- judge: record that a coordinator is there, judge the leases, and answer which workers are to be recovered now.
-- Protects: an outage, a failover, a paused server or a clock step is not mistaken for the death of workers.
-- Role: coordinator
-- Keys: coordinators, namespace, watch, worker, workers
-- ARGV: now, coordinator, tick, most
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   coordinator: id of the coordinator
--   tick: ms between two judgements
--   most: the largest number of workers to answer
-- Flags: allow-oom
-- Uses: time, judge
-- Unconfirmed: leases are judged again at each tick
-- Answers: ok
--   ok: with the workers, the time until which recovery is paused, and the server's time
local clock = server_ms(now)
local hold_until = judge_leases(clock, tonumber(tick))
redis.call('ZADD', coordinators_key(), int(clock), coordinator)
redis.call('ZREMRANGEBYSCORE', coordinators_key(), '-inf', int(clock - SEEN_MS))

-- While recovery is paused, only condemned workers are recovered: their deadline is 0.
local latest = clock < hold_until and '0' or int(clock)
return { 'ok', redis.call('ZRANGEBYSCORE', workers_key(), '-inf', latest, 'LIMIT', 0, most), int(hold_until), int(clock) }
