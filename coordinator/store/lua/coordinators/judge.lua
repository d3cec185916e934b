-- judge: record that a coordinator runs, check which leases have expired, and answer the workers whose runs have to be recovered now.
-- Protects: an outage, a failover, a paused server or a clock step is not mistaken for the death of workers; the runs of a lost
-- worker are recovered even if one pause follows the other.
-- Role: coordinator
-- Keys: coordinators, namespace, watch, worker, workers
-- ARGV: now, coordinator, tick, most
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   coordinator: id of the coordinator
--   tick: ms between two checks of the leases; the interval is twice as long while no lease can expire soon
--   most: the largest number of workers to answer
-- Flags: allow-oom
-- Uses: time, judge
-- Unconfirmed: the leases are checked again at each tick
-- Answers: ok
--   ok: with the workers, the time until which recovery is paused, the server's time, and the ms until the next check
local clock = server_ms(now)
local hold_until, first, rest, clamped = judge_leases(clock, tonumber(tick), true)
redis.call('ZADD', coordinators_key(), int(clock), coordinator)
if clamped then redis.call('ZREMRANGEBYSCORE', coordinators_key(), '-inf', int(clock - SEEN_MS)) end

if not first or first > clock then return { 'ok', {}, int(hold_until), int(clock), int(rest) } end
if clock >= hold_until then
  local over = redis.call('ZRANGEBYSCORE', workers_key(), '-inf', int(clock), 'LIMIT', 0, most)
  return { 'ok', over, int(hold_until), int(clock), int(rest) }
end
-- While recovery is paused, answer only the workers that no pause protects: condemned workers (their deadline is 0), and workers
-- whose own protection has ended.
local lost = redis.call('ZRANGEBYSCORE', workers_key(), '-inf', '0', 'LIMIT', 0, most)
local expired = redis.call('ZRANGEBYSCORE', workers_key(), '(0', int(clock), 'WITHSCORES', 'LIMIT', 0, MOST_JUDGED)
for i = 1, #expired, 2 do
  if #lost >= tonumber(most) then break end
  if not is_spared(expired[i], expired[i + 1], clock, hold_until) then lost[#lost + 1] = expired[i] end
end
return { 'ok', lost, int(hold_until), int(clock), int(rest) }
