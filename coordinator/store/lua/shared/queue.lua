-- Adding runs to the queues in which they wait, and ringing the bells on which workers and coordinators wait. These keys are shared
-- by many runs. If one of them has a wrong type, a script must not stop in the middle: then the run is in no queue, until the
-- doctor finds it.

local function ring(bell)
  if redis.pcall('LLEN', bell) == 0 then
    redis.call('RPUSH', bell, '1')
    redis.call('PEXPIRE', bell, BELL_MS)
  end
end

-- Return false if the queue has a wrong type.
local function add_to_ready(id, route, score)
  if type(redis.pcall('ZADD', ready_key(route), score, id)) ~= 'number' then return false end
  redis.pcall('SADD', routes_key(), route)
  ring(bell_key(route))
  return true
end

local function add_to_suspect(id, route, score)
  redis.pcall('ZADD', suspect_key(route), score, id)
  redis.pcall('SADD', routes_key(), route)
  ring(suspect_bell_key(route))
end

-- A coordinator sleeps until the first delayed run is due, so an earlier one must wake it.
local function add_to_delayed(id, due)
  local first, first_due = unpack(redis.pcall('ZRANGE', delayed_key(), 0, 0, 'WITHSCORES'))
  redis.pcall('ZADD', delayed_key(), due, id)
  if not first or tonumber(first_due) > due then ring(coordinator_bell_key()) end
end

-- Remove a run that is not running from every queue in which it may wait.
local function leave_queues(id, route)
  redis.pcall('ZREM', ready_key(route), id)
  redis.pcall('ZREM', suspect_key(route), id)
  redis.pcall('ZREM', delayed_key(), id)
  redis.pcall('ZREM', waiting_key(), id)
end

-- Leave a hint in the inbox of a worker or supervisor, which then reads the stored request without waiting for its next heartbeat.
local function notify(process, hint)
  redis.pcall('RPUSH', inbox_key(process), hint)
  redis.pcall('LTRIM', inbox_key(process), -INBOX_LENGTH, -1)
  redis.call('PEXPIRE', inbox_key(process), INBOX_MS)
end
