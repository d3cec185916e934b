-- finish: end a request: replace its reserved tokens by the real cost of its call and free its place, or remove its turn in the line.
-- Protects: a repeated call settles once; an acquire of the same request that arrives later reserves nothing.
-- Role: worker
-- Keys: bucket, holders, inbox, namespace, rates, turns, workers
-- ARGV: now, worker
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker in the partition of the name
-- EACH: name, number, cost
--   name: name of the rate
--   number: number of the request
--   cost: tokens that the call has cost; empty: as many as it reserved
-- Flags: allow-oom
-- Uses: time, queue, calls, rates
-- Answers: ok, left, again, bad, unreadable
--   left: the request was still waiting, and has left the line
--   again: the request has ended before, or never existed
--   unreadable: a key has another type; the request was removed from the others
local clock = server_ms(now)

local function finish(name, number, cost)
  if not number then return 'bad' end
  local rate = read_rate(name) or { speed = 0, at_once = FAR_FUTURE }
  local bucket, request = read_bucket(name, rate.speed, clock, worker), worker .. '-' .. int(number)
  if not bucket then
    -- A key has another type. In the other keys the request would block calls after the repair, as long as its worker lives.
    redis.pcall('ZREM', holders_key(name), request)
    redis.pcall('ZREM', turns_key(name), request)
    return 'unreadable'
  end
  local reserved = tonumber(redis.call('ZSCORE', holders_key(name), request))
  bucket.seen = math.max(bucket.seen, number)
  local answer = 'again'
  if reserved then
    if cost and rate.speed > 0 then bucket.level = math.max(0, bucket.level + cost - reserved) end
    if cost and cost < reserved then
      bucket.settled = '1'
      offer_tokens(name, rate, bucket)
    end
    redis.call('ZREM', holders_key(name), request)
    bucket.held = bucket.held - 1
    answer = 'ok'
  elseif redis.call('ZREM', turns_key(name), request) == 1 then
    answer = 'left'
    local _, first = find_turn(name, 0)
    if first then close_gap(name, rate, bucket, 0, first) end
  end
  write_bucket(name, bucket, rate.speed, clock, worker)
  if answer ~= 'again' then call_next(name, rate.at_once, bucket.held) end
  return answer
end

local answers = {}
for i = 1, items do
  local name, number, cost = item(i)
  answers[i] = finish(name, tonumber(number), tonumber(cost))
end
return answers
