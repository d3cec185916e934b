-- Judging leases. The server's time is kept from one judgement to the next: a gap, a step back, or most of the fleet expiring
-- at once says that something else went wrong than the workers, and holds recovery for one lease. The hold ends by itself.
local MOST = 1000

local function lease_of(worker)
  local lease = redis.pcall('HGET', worker_key(worker), 'lease')
  return type(lease) == 'string' and tonumber(lease) or 0
end

local function longest_lease()
  local longest = 0
  for _, worker in ipairs(redis.call('ZRANGE', workers_key(), 0, MOST - 1)) do longest = math.max(longest, lease_of(worker)) end
  return longest
end

-- A deadline further away than the worker's own lease comes from a clock that was ahead.
local function clamp(now)
  local ahead = redis.call('ZREVRANGEBYSCORE', workers_key(), '+inf', '(' .. int(now), 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, #ahead, 2 do
    local furthest = now + lease_of(ahead[i])
    if tonumber(ahead[i + 1]) > furthest then redis.call('ZADD', workers_key(), int(furthest), ahead[i]) end
  end
end

-- Answers until when only condemned workers are taken. Each batch of a recovery asks, and to clamp looks at every worker: that is
-- done twice a tick at most.
local function judge(now, tick)
  local watch = redis.call('HMGET', watch_key(), 'at', 'hold_until', 'clamped')
  local before, hold_until, clamped = tonumber(watch[1] or 0), tonumber(watch[2] or 0), tonumber(watch[3] or 0)
  if now < clamped or now - clamped >= tick / 2 then
    clamp(now)
    clamped = now
  end
  local gap = now - before
  local passed = redis.call('ZCOUNT', workers_key(), '(' .. int(math.max(before, 1)), int(now))
  local most = passed >= 3 and passed * 2 > redis.call('ZCOUNT', workers_key(), '(0', '+inf') -- condemned ones are at 0
  if gap < 0 or gap > 3 * tick or most then hold_until = now + longest_lease() end
  redis.call('HSET', watch_key(), 'at', int(now), 'hold_until', int(hold_until), 'clamped', int(clamped))
  return hold_until
end
