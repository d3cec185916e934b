-- Runs that wait. The field `wait` of a waiting run is "<since> <condition>", and a condition is "<deadline> <part> <part> …". The
-- deadline is in ms, or - for none. There are two kinds of parts. s:<topic>:<received> waits for a signal of the topic with a
-- number above `received`. c:<base>:<need> waits until `need` children of a step have ended. A condition holds if its deadline has
-- passed or if one of its parts holds.

-- Return the deadline of a condition (false: none) and its topics with the number of received signals; nil if it can't be read.
local function read_condition(text)
  local deadline, parts = string.match(text, '^(%S+)(.*)$')
  if not deadline or (deadline ~= '-' and not natural(deadline)) then return nil end
  local condition = { deadline = deadline ~= '-' and tonumber(deadline), topics = {}, steps = {} }
  for part in string.gmatch(parts, '%S+') do
    local topic, received = string.match(part, '^s:([%w_.-]+):(%d+)$')
    local base, need = string.match(part, '^c:([0-9a-z]+%-%d+):(%d+)$')
    if not topic and not base then return nil end
    if topic then
      condition.topics[topic] = tonumber(received)
    else
      condition.steps[base], condition.joins = tonumber(need), true
    end
  end
  return condition
end

-- Return the condition of a waiting run; nil if it can't be read.
local function read_wait(run)
  local condition = string.match(run.wait or '', '^%d+ (.+)$')
  return condition and read_condition(condition)
end

-- Return why a condition holds: 'signal <topic>', 'children' or 'time'; nil if it does not hold.
local function find_reason(id, condition, clock)
  for topic, received in pairs(condition.topics) do
    local last, first = unpack(redis.pcall('HMGET', signals_key(id), 'last:' .. topic, 'first:' .. topic))
    -- If a number can't be read, wake the run: its handler reports the damage, and nothing else would wake the run.
    last, first = last and (tonumber(last) or FAR_FUTURE), tonumber(first or 1) or 1
    -- A run that starts again from the beginning has received no signal. Signals below `first` were removed, and do not count.
    if last and last >= math.max(received + 1, first) then return 'signal ' .. topic end
  end
  for base, need in pairs(condition.steps) do
    local text = redis.pcall('HGET', joins_key(id), base)
    local ended = string.match(type(text) == 'string' and text or '', '^%d+ (%d+)$')
    -- If the entry of the step is lost, wake the run: nothing else would ever wake it.
    if not ended or tonumber(ended) >= need then return 'children' end
  end
  if condition.deadline and clock >= condition.deadline then return 'time' end
end

-- A coordinator sleeps until the first waiting run is due, so an earlier deadline must wake it.
local function add_to_waiting(id, condition, clock)
  local deadline = condition.deadline
  -- A coordinator checks a run that waits for children from time to time, because a child may be lost without an ending.
  if condition.joins then deadline = math.min(deadline or FAR_FUTURE, clock + CHILDREN_EXAMINED_MS) end
  local first, first_due = unpack(redis.call('ZRANGE', waiting_key(), 0, 0, 'WITHSCORES'))
  redis.call('ZADD', waiting_key(), int(deadline or FAR_FUTURE), id)
  if deadline and (not first or tonumber(first_due) > deadline) then ring(coordinator_bell_key()) end
end

-- Queue a waiting run. The run keeps its score, so that it continues before runs that were enqueued later.
local function wake_run(id, counters, reason)
  redis.call('ZREM', waiting_key(), id)
  redis.call('HDEL', run_key(id), 'wait')
  requeue(id, counters, 'wake ' .. reason, nil)
end

-- Return by topic the number of the last signal that the run has received, according to its checkpoint.
local function read_received(id)
  local received, more = {}, redis.pcall('HGET', ckpt_key(id), 'more')
  local parts = netstrings(type(more) == 'string' and more or '') or {}
  for i = 1, #parts - 1, 2 do
    local topic = string.match(parts[i], '^received:(.+)$')
    if topic then received[topic] = tonumber(parts[i + 1]) or 0 end
  end
  return received
end

-- Return each topic of which the run has signals that it has not received, followed by their number.
local function count_unreceived(id)
  local fields, received, found = redis.pcall('HKEYS', signals_key(id)), read_received(id), {}
  for i = 1, #fields do
    local topic = string.match(fields[i], '^last:(.+)$')
    if topic then
      local last, first = unpack(redis.call('HMGET', signals_key(id), 'last:' .. topic, 'first:' .. topic))
      local before = math.max(received[topic] or 0, (tonumber(first) or 1) - 1)
      local number = (tonumber(last) or 0) - before
      if number > 0 then
        found[#found + 1] = topic
        found[#found + 1] = number
      end
    end
  end
  return found
end
