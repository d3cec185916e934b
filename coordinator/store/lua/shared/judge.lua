-- Judging leases. The server's time of each judgement is stored. Recovery pauses for one lease if that time shows a gap or a step
-- back, or if most of the fleet expired together: then the fault is not with the workers. The pause ends by itself.
local MOST_JUDGED = 1000 -- workers

local function read_lease(worker)
  local lease = redis.pcall('HGET', worker_key(worker), 'lease')
  return type(lease) == 'string' and tonumber(lease) or 0
end

local function longest_lease()
  local longest = 0
  for _, worker in ipairs(redis.call('ZRANGE', workers_key(), 0, MOST_JUDGED - 1)) do
    longest = math.max(longest, read_lease(worker))
  end
  return longest
end

-- Shorten every deadline that is further away than the worker's own lease: it comes from a clock that was ahead.
local function clamp_deadlines(now)
  local ahead = redis.call('ZREVRANGEBYSCORE', workers_key(), '+inf', '(' .. int(now), 'WITHSCORES', 'LIMIT', 0, MOST_JUDGED)
  for i = 1, #ahead, 2 do
    local worker, deadline = ahead[i], ahead[i + 1]
    local furthest = now + read_lease(worker)
    if tonumber(deadline) > furthest then redis.call('ZADD', workers_key(), int(furthest), worker) end
  end
end

-- Return the time until which only condemned workers are recovered. Each batch of a recovery calls this function, and clamping
-- looks at every worker, so deadlines are clamped at most twice in a tick.
local function judge_leases(now, tick)
  local at, hold_until, clamped = unpack(redis.call('HMGET', watch_key(), 'at', 'hold_until', 'clamped'))
  at, hold_until, clamped = tonumber(at or 0), tonumber(hold_until or 0), tonumber(clamped or 0)
  if now < clamped or now - clamped >= tick / 2 then
    clamp_deadlines(now)
    clamped = now
  end
  local gap = now - at
  local expired = redis.call('ZCOUNT', workers_key(), '(' .. int(math.max(at, 1)), int(now))
  -- Condemned workers have the deadline 0 and do not count.
  local most = expired >= 3 and expired * 2 > redis.call('ZCOUNT', workers_key(), '(0', '+inf')
  if gap < 0 or gap > 3 * tick or most then hold_until = now + longest_lease() end
  redis.call('HSET', watch_key(), 'at', int(now), 'hold_until', int(hold_until), 'clamped', int(clamped))
  return hold_until
end
