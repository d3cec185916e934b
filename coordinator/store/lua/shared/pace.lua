-- The rate of starts of a group. A run that is admitted under a rate is in `starting` until a worker claims it: the claim is its
-- start. `pace` is the time until which the starts so far use up the rate: each start moves it by one interval, and a start is
-- possible while it is less than `burst` intervals ahead. At most as many runs are in `starting` as may start now. So the number of
-- starts in any time t is at most burst + rate * t, however long the runs have waited for a worker.

-- Return the number of places of a group, and its rate of starts as text. The number is nil if no limit is known, and then no run is
-- admitted. The rate is nil if there is none. '-' is stored for no limit.
local function limit_of(group)
  local kind = string.match(group, '^[^:]+') or ''
  local own, set, published, own_rate, set_rate, published_rate = unpack(redis.pcall('HMGET', limits_key(), 'group:' .. group,
    'kind:' .. kind, 'handler:' .. kind, 'rate:group:' .. group, 'rate:kind:' .. kind, 'rate:handler:' .. kind))
  local limit, rate = own or set or published, own_rate or set_rate or published_rate
  return limit == '-' and FAR_FUTURE or tonumber(limit), rate ~= '-' and rate or nil
end

-- Return the state of a rate; nil if it can't be read, and then no run is admitted. `left` is how many more runs may be admitted.
local function read_pace(group, rate, clock)
  local amount, per, burst = string.match(rate, '^(%d+) (%d+) (%d+)$')
  local starting = redis.pcall('SCARD', starting_key(group))
  if not amount or tonumber(amount) == 0 or type(starting) ~= 'number' then return nil end
  local interval = tonumber(per) / tonumber(amount)
  burst = tonumber(burst)
  -- A clock that was set back delays the next start by the time of one burst at most.
  local used = math.min(math.max(tonumber(redis.pcall('GET', pace_key(group))) or 0, clock), clock + burst * interval)
  local possible = math.floor(burst - (used - clock) / interval + 1e-6)
  return { interval = interval, burst = burst, used = used, starting = starting, left = math.max(0, possible - starting) }
end

-- Return when one more run may be admitted; nil if a worker has to claim one of the admitted runs first.
local function next_start(pace)
  if pace.starting >= pace.burst then return nil end
  return math.ceil(pace.used - (pace.burst - pace.starting - 1) * pace.interval)
end

-- Let a coordinator fill the group again when its rate allows the next run.
local function fill_later(group, pace, clock)
  local at = next_start(pace)
  if not at then return end
  local first, first_at = unpack(redis.pcall('ZRANGE', paced_key(), 0, 0, 'WITHSCORES'))
  redis.pcall('ZADD', paced_key(), int(math.max(at, clock)), group)
  if not first or tonumber(first_at) > at then ring(coordinator_bell_key()) end
end
