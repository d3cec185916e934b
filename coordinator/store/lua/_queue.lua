-- Putting runs into their lines, and ringing who waits for them.
local function ring(bell)
  if redis.call('LLEN', bell) == 0 then
    redis.call('RPUSH', bell, '1')
    redis.call('PEXPIRE', bell, 60000)
  end
end

local function into_ready(id, route, score)
  redis.call('ZADD', ready_key(route), score, id)
  redis.call('SADD', routes_key(), route)
  ring(bell_key(route))
end

local function into_suspect(id, route, score)
  redis.call('ZADD', suspect_key(route), score, id)
  redis.call('SADD', routes_key(), route)
  ring(suspect_bell_key(route))
end

-- A coordinator that sleeps until the first entry must hear of an earlier one.
local function into_delayed(id, due)
  local first = redis.call('ZRANGE', delayed_key(), 0, 0, 'WITHSCORES')
  redis.call('ZADD', delayed_key(), due, id)
  if not first[1] or tonumber(first[2]) > due then ring(coordinator_bell_key()) end
end
