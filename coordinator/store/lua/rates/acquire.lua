-- acquire: start an external call if its rate allows the call now; otherwise give it a turn in the line, and answer when to ask
-- again. A worker asks until the answer is ok, and calls finish afterwards in any case.
-- Protects: a call that starts never raises the level (the tokens in use, see shared/rates.lua) above the burst; no more calls are
-- under way than the rate allows at the same time; calls start in the order in which they began to wait; a call that leaves the
-- line without a start delays no other; a repeated call reserves once, and a call that arrives after finish reserves nothing.
-- Role: worker
-- Keys: bucket, holders, inbox, namespace, rates, turns, workers
-- ARGV: now, worker
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker in the partition of the name
-- EACH: name, number, cost
--   name: name of the rate
--   number: number of the request; a worker gives each request a higher one
--   cost: tokens to reserve
-- Flags: allow-oom
-- Uses: time, queue, calls, rates
-- Answers: ok, wait, old, gone, unknown, large, bad, unreadable
--   wait: with the ms after which to ask again, and the number of requests before it in the line
--   old: the request has ended, or the worker has sent a request with a higher number; nothing is reserved; ask with a new number
--   gone: the worker has left or is lost
--   unknown: the name has no rate
--   large: the cost is above the burst; with the burst
--   unreadable: a key has another type
local TOLERANCE, FIRST_LOOK_MS, LATER_LOOK_MS, MOST_CHECKED = 1e-6, 1000, 5000, 100
local clock, live = server_ms(now), is_live(worker)

-- Forget the numbers of workers that are gone, when a new worker comes.
local function forget_workers(name)
  for _, field in ipairs(redis.call('HKEYS', bucket_key(name))) do
    local other = string.match(field, '^seen:(.+)$')
    if other and not is_live(other) then redis.call('HDEL', bucket_key(name), field) end
  end
end

-- Take the places of requests whose workers are gone. Return the number of places that are still held.
local function free_places(name)
  local known = {}
  for _, request in ipairs(redis.call('ZRANGE', holders_key(name), 0, BATCH - 1)) do
    local other = worker_in(request)
    if known[other] == nil then known[other] = is_live(other) end
    if not known[other] then redis.call('ZREM', holders_key(name), request) end
  end
  return redis.call('ZCARD', holders_key(name))
end

-- Ask the workers of the calls that hold places, and of the first requests of the line, whether these are still open. A server that
-- lost its last writes in a failover or a power cut may have lost their ends, and nothing else would free their places.
local function check_calls(name)
  local last = tonumber(redis.call('HGET', bucket_key(name), 'checked')) or 0
  if math.abs(clock - last) < LATER_LOOK_MS then return end
  redis.call('HSET', bucket_key(name), 'checked', int(clock))
  local numbers = {} -- by worker
  for _, key in ipairs({ holders_key(name), turns_key(name) }) do
    for _, request in ipairs(redis.call('ZRANGE', key, 0, MOST_CHECKED - 1)) do
      local other = worker_in(request)
      numbers[other] = (numbers[other] or '') .. ' ' .. string.match(request, '%d+$')
    end
  end
  for other, text in pairs(numbers) do
    if is_live(other) then notify(other, 'calls ' .. name .. text) end
  end
end

-- Return the ms until a request may start, and whether it needs a place that is not free. `ahead` and `rank` are the cost and the number
-- of the requests before it.
local function time_left(rate, bucket, cost, ahead, rank)
  local left = math.max(0, bucket.resumes - clock)
  if rate.speed > 0 then
    left = math.max(left, math.ceil((bucket.level + ahead + cost - rate.burst) / rate.speed - TOLERANCE))
  end
  return left, bucket.held + rank >= rate.at_once
end

local function acquire(name, number, cost)
  if not (live and number and cost and cost >= 0) then return { live and 'bad' or 'gone' } end
  local rate, missing = read_rate(name)
  local request = worker .. '-' .. int(number)
  if not rate or cost > rate.burst then
    if redis.pcall('ZREM', turns_key(name), request) == 1 then hint_turns(name, 0, 0) end
    return { missing or 'large', rate and int(rate.burst) }
  end
  local bucket = read_bucket(name, rate.speed, clock, worker)
  if not bucket then return { 'unreadable' } end
  if bucket.new then forget_workers(name) end
  local answer
  local turn, before, rank, ahead = false, bucket.seen, 0, 0
  bucket.seen = math.max(bucket.seen, number)
  if bucket.held > 0 and redis.call('ZSCORE', holders_key(name), request) then
    answer = { 'ok' }
  elseif bucket.waiting > 0 then
    local _, first = find_turn(name, 0)
    turn = redis.call('ZSCORE', turns_key(name), request)
    rank = turn and redis.call('ZRANK', turns_key(name), request) or redis.call('ZCARD', turns_key(name))
    ahead = first and math.max(0, (tonumber(turn) or bucket.ticket) - first) or 0
    if first then close_gap(name, rate, bucket, cost, first, request) end
  end
  if not answer and not turn and number <= before then answer = { 'old' } end
  if not answer then
    local left, full = time_left(rate, bucket, cost, ahead, rank)
    if full and rank == 0 then
      bucket.held = free_places(name)
      left, full = time_left(rate, bucket, cost, ahead, rank)
    end
    if left <= 0 and not full then
      if rate.speed > 0 then bucket.level = bucket.level + cost end
      if turn then take_turn(name, rate, bucket, request, cost, rank) end
      redis.call('ZADD', holders_key(name), cost, request)
      redis.call('PEXPIRE', holders_key(name), WEEK_MS)
      answer = { 'ok' }
    else
      if not turn then
        redis.call('ZADD', turns_key(name), string.format('%.17g', bucket.ticket), request)
        bucket.front = bucket.front or bucket.ticket
        bucket.ticket = bucket.ticket + math.max(cost, LEAST_TICKET)
      end
      redis.call('PEXPIRE', turns_key(name), WEEK_MS)
      -- A call that cost less than it had reserved lets the others start earlier than they were told.
      if bucket.settled == '1' then left = math.min(left, math.max(FIRST_LOOK_MS, math.floor(left / 4))) end
      if full then left = math.max(left, rank <= 1 and FIRST_LOOK_MS or LATER_LOOK_MS) end
      if turn and (full or rank > 0) then check_calls(name) end
      answer = { 'wait', int(math.max(left, 1)), int(rank) }
    end
  end
  write_bucket(name, bucket, rate.speed, clock, worker)
  return answer
end

local answers = {}
for i = 1, items do
  local name, number, cost = item(i)
  answers[i] = acquire(name, tonumber(number), tonumber(cost))
end
return answers
