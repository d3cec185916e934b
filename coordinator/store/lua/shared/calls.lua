-- Requests of external calls that share a rate. A request is "<worker>-<number>": one block of a handler. `holders` has the
-- requests whose blocks are open, by the cost that they reserved. `turns` has the requests that wait, by ticket: the cost of all
-- requests that began to wait before them. A request whose worker is gone does not count any more.
--
-- A request that waits sleeps until the time that it was told, which follows from the tickets of the requests before it. A request
-- that leaves the line without a start leaves a gap between the tickets. When the requests before a gap have started, all others may
-- start earlier than they were told. Then the first requests of the line get a hint, so that their workers ask again.

-- Return the rate of a name: speed is in tokens per ms, 0 if only the number of simultaneous calls is limited. Return nil and the
-- answer word if there is no rate.
local function read_rate(name)
  local text = redis.pcall('HGET', rates_key(), name)
  if type(text) == 'table' then return nil, 'unreadable' end
  local amount, per, burst, at_once = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)$')
  if not amount or (tonumber(amount) and not tonumber(per)) then return nil, 'unknown' end
  local speed = tonumber(amount) and tonumber(amount) / tonumber(per) or 0
  return { speed = speed, burst = tonumber(burst) or FAR_FUTURE, at_once = tonumber(at_once) or FAR_FUTURE }
end

-- Return false if a worker has left or was condemned (see shared/recover.lua). A worker whose lease has expired keeps its places until
-- a coordinator condemns it, because an outage or a clock step may be the cause.
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

-- Tell the workers of the requests at these ranks of the line, other than `asker`, to ask again.
local function hint_turns(name, from, to, asker)
  for _, request in ipairs(redis.call('ZRANGE', turns_key(name), from, to)) do
    local worker = worker_in(request)
    if request ~= asker and is_live(worker) then notify(worker, 'limit ' .. string.match(request, '%d+$')) end
  end
end

-- Remove the requests of a worker from a set. Return how many there were; nil if the key has another type.
local function remove_requests(key, worker)
  local requests, removed = redis.pcall('ZRANGE', key, 0, -1), 0
  if requests.err then return nil end
  for _, request in ipairs(requests) do
    if worker_in(request) == worker then removed = removed + redis.call('ZREM', key, request) end
  end
  return removed
end

-- Remove all requests of a worker that is gone, and tell the requests that may have its places now. If it had a turn in a line that
-- does not wait for places, the first request asks again, and finds the gap. A request that is not removed here, for example because its rate was removed,
-- is removed by the next call that needs its place.
local function forget_calls(worker)
  for _, name in ipairs(redis.pcall('HKEYS', rates_key())) do
    local freed, left = remove_requests(holders_key(name), worker), remove_requests(turns_key(name), worker)
    local rate = freed and left and freed + left > 0 and read_rate(name)
    if rate then
      local held = redis.call('ZCARD', holders_key(name)) + freed
      if left > 0 and held < rate.at_once then hint_turns(name, 0, 0) end
      for i = 1, freed do call_next(name, rate.at_once, held - i) end
    end
  end
end
