-- Calls to the outside that share a rate. The rate of a name is a bucket: each call adds its cost to the level, the level falls with
-- time, and a call may start while the level stays at or below the burst. A request is "<worker>-<number>": one block of a handler.
-- `holders` has the requests whose blocks are open, by the cost that they reserved. `turns` has the requests that wait, by ticket: the
-- cost of all requests that began to wait before them. A request whose worker is gone does not count any more.

-- Return the rate of a name: speed is in tokens per ms, 0 if only the number of calls at once is limited. Return nil and the answer
-- word if there is no rate.
local function read_rate(name)
  local text = redis.pcall('HGET', rates_key(), name)
  if type(text) == 'table' then return nil, 'unreadable' end
  local amount, per, burst, at_once = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)$')
  if not amount then return nil, 'unknown' end
  local speed = tonumber(amount) and tonumber(amount) / tonumber(per) or 0
  return { speed = speed, burst = tonumber(burst) or FAR_FUTURE, at_once = tonumber(at_once) or FAR_FUTURE }
end

-- Return the ticket for the next request that waits, if the bucket was lost: behind the last one in the line.
local function next_ticket(name)
  local _, last = unpack(redis.call('ZRANGE', turns_key(name), -1, -1, 'WITHSCORES'))
  return (tonumber(last) or 0) + 0.001
end

-- Return the bucket of a name as it is now; nil if a key has a wrong type. A clock that was set back neither raises the level nor
-- stops it from falling, and does not prolong a back-off. `seen` is the highest number that the worker has sent for the name.
local function read_bucket(name, speed, clock, worker)
  local values = redis.pcall('HMGET', bucket_key(name), 'level', 'at', 'resumes', 'pause', 'ticket', 'settled', 'seen:' .. worker)
  local held, waiting = redis.pcall('ZCARD', holders_key(name)), redis.pcall('ZCARD', turns_key(name))
  if values.err or type(held) ~= 'number' or type(waiting) ~= 'number' then return nil end
  local level, at, resumes, pause, ticket, settled, seen = unpack(values)
  level, at, resumes, pause = tonumber(level) or 0, tonumber(at) or clock, tonumber(resumes) or 0, tonumber(pause) or 0
  return {
    level = math.max(0, level - math.max(0, clock - at) * speed),
    resumes = math.min(resumes, clock + pause), pause = pause,
    ticket = waiting == 0 and 0 or tonumber(ticket) or next_ticket(name), settled = settled or '0', seen = tonumber(seen) or 0,
    held = held, waiting = waiting, new = not seen,
  }
end

-- Store the bucket. It expires when its level is 0 and the requests that wait have asked again, but not before late calls have
-- arrived.
local function write_bucket(name, bucket, speed, clock, worker)
  redis.call('HSET', bucket_key(name), 'level', string.format('%.17g', bucket.level), 'at', int(clock), 'resumes', int(bucket.resumes),
    'pause', int(bucket.pause), 'ticket', string.format('%.17g', bucket.ticket), 'settled', bucket.settled)
  if worker ~= '' then redis.call('HSET', bucket_key(name), 'seen:' .. worker, int(bucket.seen)) end
  local idle = math.max(speed > 0 and math.ceil((bucket.level + bucket.ticket) / speed) or 0, bucket.resumes - clock, 0)
  redis.call('PEXPIRE', bucket_key(name), int(idle + TOMBSTONE_MS))
end

-- Return false if a worker has left or was condemned. A worker whose lease has expired keeps its places until a coordinator
-- condemns it, because an outage or a clock step may be the cause.
local function is_live(worker) return (tonumber(redis.pcall('ZSCORE', workers_key(), worker)) or 0) > 0 end

local function worker_in(request) return string.match(request, '^(.+)%-%d+$') or '' end

-- Return the first request at or after a rank of the line whose worker is live, with its ticket. Remove the others before it.
local function find_turn(name, rank)
  for _ = 1, BATCH do
    local request, ticket = unpack(redis.call('ZRANGE', turns_key(name), rank, rank, 'WITHSCORES'))
    if not request or is_live(worker_in(request)) then return request, tonumber(ticket) end
    redis.call('ZREM', turns_key(name), request)
  end
end

-- Tell the worker of the request that may have a place now. The requests before it were told when their places became free.
local function call_next(name, at_once, held)
  if at_once == FAR_FUTURE or held >= at_once then return end
  local request = find_turn(name, at_once - held - 1)
  if request then notify(worker_in(request), 'limit ' .. string.match(request, '%d+$')) end
end
