-- Adding runs to the queues in which they wait, and ringing the bells on which workers and coordinators wait.

local function ring(bell)
  if redis.call('LLEN', bell) == 0 then
    redis.call('RPUSH', bell, '1')
    redis.call('PEXPIRE', bell, BELL_MS)
  end
end

local function add_to_ready(id, route, score)
  redis.call('ZADD', ready_key(route), score, id)
  redis.call('SADD', routes_key(), route)
  ring(bell_key(route))
end

local function add_to_suspect(id, route, score)
  redis.call('ZADD', suspect_key(route), score, id)
  redis.call('SADD', routes_key(), route)
  ring(suspect_bell_key(route))
end

-- A coordinator sleeps until the first delayed run is due, so an earlier one must wake it.
local function add_to_delayed(id, due)
  local first, first_due = unpack(redis.call('ZRANGE', delayed_key(), 0, 0, 'WITHSCORES'))
  redis.call('ZADD', delayed_key(), due, id)
  if not first or tonumber(first_due) > due then ring(coordinator_bell_key()) end
end

-- Remove a run that is not running from every queue in which it may wait.
local function leave_queues(id, route)
  redis.call('ZREM', ready_key(route), id)
  redis.call('ZREM', suspect_key(route), id)
  redis.call('ZREM', delayed_key(), id)
  redis.call('ZREM', waiting_key(), id)
end

-- Leave a hint in the inbox of a worker or supervisor, which then looks at the stored facts without waiting for its next
-- heartbeat.
local function notify(process, hint)
  redis.call('RPUSH', inbox_key(process), hint)
  redis.call('LTRIM', inbox_key(process), -INBOX_LENGTH, -1)
  redis.call('PEXPIRE', inbox_key(process), INBOX_MS)
end
