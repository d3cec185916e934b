-- Checking which leases have expired. The server's time of each check is stored. Recovery pauses for one lease if the stored times show
-- a gap or a step back, or if most leases of the fleet expired together: then the workers are not the cause. The pause ends by itself.
-- A coordinator that is slowed down or restarted again and again makes one pause follow the other. So only the first pause that
-- finds a lease expired protects its worker. A further gap adds a third of the worker's lease, once, because the gap may have been
-- a second outage of the server, in which the worker could not renew its lease.
local MOST_JUDGED = 1000 -- workers
local CLAMP_TICKS = 10
local QUIET_TICKS = 8 -- more than the 6 ticks by which a coordinator that checks at every second tick may be late without a pause

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

-- Return the time until which a pause protects a worker, and '1' if that time was prolonged. Return nil if no pause was recorded
-- for the lease that expired at this deadline. `spared` is the worker's field: "<deadline> <until> <0 or 1>".
local function read_spared(spared, deadline)
  local of, till, prolonged = string.match(spared or '', '^(%d+) (%d+) ([01])$')
  if of == int(tonumber(deadline)) then return tonumber(till), prolonged end
end

-- Record for each worker whose lease has expired the time until which the present pause protects it.
local function spare_expired(now, hold_until, after_gap)
  local expired = redis.call('ZRANGEBYSCORE', workers_key(), '(0', int(now), 'WITHSCORES', 'LIMIT', 0, MOST_JUDGED)
  for i = 1, #expired, 2 do
    local worker, deadline = expired[i], expired[i + 1]
    local lease, spared = read_fields(worker_key(worker), 'lease', 'spared')
    if lease then -- Nothing is written where the worker's entry is missing or can't be read.
      local till, prolonged = read_spared(spared, deadline)
      local last_chance = now + math.floor((tonumber(lease) or 0) / 3)
      if not till or till > hold_until then
        redis.call('HSET', worker_key(worker), 'spared', int(tonumber(deadline)) .. ' ' .. int(hold_until) .. ' 0')
      elseif after_gap and prolonged == '0' and till < last_chance then
        redis.call('HSET', worker_key(worker), 'spared', int(tonumber(deadline)) .. ' ' .. int(last_chance) .. ' 1')
      end
    end
  end
end

-- Return true if a pause protects a worker whose lease expired at this deadline.
local function is_spared(worker, deadline, now, hold_until)
  if now >= hold_until then return false end
  local spared = read_fields(worker_key(worker), 'spared')
  local till = read_spared(spared, deadline)
  return not till or now < till
end

-- Return the time until which recovery is paused, the earliest deadline (nil if there is no worker), the ms until the next
-- check, and true if the deadlines were clamped. Each batch of a recovery calls this function, and clamping reads every
-- worker, so deadlines are clamped at most twice in a tick during a pause, and every few ticks otherwise. `plans` is true if the
-- caller checks again after the returned time.
local function judge_leases(now, tick, plans)
  local at, hold_until, clamped, rest = unpack(redis.call('HMGET', watch_key(), 'at', 'hold_until', 'clamped', 'rest'))
  at, hold_until, clamped = tonumber(at or 0), tonumber(hold_until or 0), tonumber(clamped or 0)
  -- The clamp reads each worker. It is needed immediately after a step back of the clock, and otherwise now and then.
  local clamps = now < at or now - clamped >= (now < hold_until and tick / 2 or CLAMP_TICKS * tick)
  if clamps then
    clamp_deadlines(now)
    clamped = now
  end
  local gap = now - at
  local first = tonumber(redis.call('ZRANGE', workers_key(), 0, 0, 'WITHSCORES')[2])
  local expired = first and first <= now and redis.call('ZCOUNT', workers_key(), '(' .. int(math.max(at, 1)), int(now)) or 0
  -- Condemned workers have the deadline 0 and do not count.
  local most = expired >= 3 and expired * 2 > redis.call('ZCOUNT', workers_key(), '(0', '+inf')
  local unwatched = gap < 0 or gap > 3 * math.max(tick, tonumber(rest or 0))
  if unwatched or most then hold_until = now + longest_lease() end
  if now < hold_until and (unwatched or most or clamps) then spare_expired(now, hold_until, unwatched) end
  rest = tonumber(rest or tick)
  if plans then
    local quiet = now >= hold_until and (not first or first - now > QUIET_TICKS * tick)
    rest = quiet and 2 * tick or tick
  end
  redis.call('HSET', watch_key(), 'at', int(now), 'hold_until', int(hold_until), 'clamped', int(clamped), 'rest', int(rest))
  return hold_until, first, rest, clamps
end
