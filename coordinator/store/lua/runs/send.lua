-- send: store a signal for a run, and wake the run if it waits for the signal.
-- Protects: a signal is stored before its run is woken, so that none is lost; a send that is repeated, or has a key that was used
-- before, stores nothing, even if the signal was received and removed meanwhile; signals that the run has received are removed only
-- here, when a limit is reached. Grants are never removed, because the spending of a run also survives a start from the beginning.
-- They do not count for the limits of signals: a run that waits for a grant receives no other signal before it.
-- Role: producer
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, delayed, groups, inbox, joins, limits, line, namespace, pace
-- Keys: paced, ready, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiting
-- ARGV: now, id, topic, payload, key, operation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   topic: name of the topic
--   payload: the payload, encoded
--   key: idempotency key of the signal; empty: none
--   operation: id of this send; a repeated call has the same
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, waiting
-- Moves: waiting -> queued
-- Answers: sent, found, ended, full, missing, bad, unreadable
--   sent: the signal is stored; this call or an earlier one stored it
--   found: a signal with this key was sent before
--   ended: with the status of the run; a grant is kept for a run that can be revived
--   full: too many signals of the run were not received, or they are too large together, and the run does not wait for this topic;
--     or the run has too many grants
--   bad: the topic is not a valid name
--   unreadable: a key has another type, or the numbers of the topic can't be read
local clock = server_ms(now)
local run = read_run(id)
local counters = run and read_counters(run.counters)
if not counters then return { 'missing' } end
if not string.find(topic, '^[%w_.-]+$') then return { 'bad' } end
local signals = signals_key(id)
local operations, keys = redis.pcall('ZCARD', signal_operations_key(id)), redis.pcall('ZCARD', signal_keys_key(id))
if type(redis.pcall('HLEN', signals)) ~= 'number' or type(operations) ~= 'number' or type(keys) ~= 'number' then
  return { 'unreadable' }
end
local function is_readable(number) return not number or natural(number) end
local oldest, newest = read_fields(signals_key(id), 'first:' .. topic, 'last:' .. topic)
if not is_readable(oldest) or not is_readable(newest) then return { 'unreadable' } end
-- Answer a send that stores nothing. The answer writes a field again, so that a WAIT for replicas covers the first send.
local function repeat_send(answer)
  redis.call('HSET', run_key(id), 'beside', run.beside or 's')
  return { answer }
end
if redis.call('ZSCORE', signal_operations_key(id), operation) then return repeat_send('sent') end
if key ~= '' and redis.call('ZSCORE', signal_keys_key(id), key) then return repeat_send('found') end
-- A run that was granted something after its end finds the grant when it is revived. A grant after the revive could be too late.
local is_grant = topic == GRANT_TOPIC
local is_kept = is_grant and run.status ~= COMPLETED and redis.call('HEXISTS', run_key(id), 'spec') == 1
if is_ended(run.status) and not is_kept then return { 'ended', run.status } end

-- Remove the signals that the run has received. Return the number and the bytes of those that are left.
local function remove_received(count, bytes)
  local all = read_received(id)
  all[GRANT_TOPIC] = nil
  for name, received in pairs(all) do
    local first = natural(redis.call('HGET', signals, 'first:' .. name) or '') or received + 1
    for number = first, received do
      local field = int(number) .. ':' .. name
      local _, _, payload = string.find(redis.call('HGET', signals, field) or '', '^%d+ %d+ (.*)$')
      count, bytes = count - 1, bytes - #(payload or '')
      redis.call('HDEL', signals, field)
    end
    if first <= received then redis.call('HSET', signals, 'first:' .. name, int(received + 1)) end
  end
  return math.max(0, count), math.max(0, bytes)
end

local order, count, bytes = read_fields(signals_key(id), 'order', 'count', 'bytes')
order, count, bytes = tonumber(order or 0) or 0, tonumber(count or 0) or 0, tonumber(bytes or 0) or 0
local function is_full()
  if not is_grant then return count + 1 > SIGNAL_COUNT or bytes + #payload > SIGNAL_BYTES end
  local first, last = read_fields(signals_key(id), 'first:' .. topic, 'last:' .. topic)
  return #payload > GRANT_BYTES or (first and last and tonumber(last) - tonumber(first) + 1 >= GRANT_COUNT)
end
if not is_grant and is_full() then
  count, bytes = remove_received(count, bytes)
  redis.call('HSET', signals, 'count', int(count), 'bytes', int(bytes))
end
-- A run that waits for this topic gets the signal although its box is full of other signals. Otherwise it could never continue.
local function is_awaited()
  local condition = not is_grant and run.status == WAITING and read_wait(run)
  return condition and condition.topics[topic] ~= nil
end
if is_full() and not is_awaited() then return { 'full' } end

-- If the key of the signals was lost, continue after the last number that the run has received: the run ignores lower numbers.
local number = tonumber(redis.call('HGET', signals, 'last:' .. topic) or read_received(id)[topic] or 0) + 1
redis.call('HSETNX', signals, 'first:' .. topic, int(number))
if not is_grant then count, bytes = count + 1, bytes + #payload end
redis.call('HSET', signals, 'order', int(order + 1), 'count', int(count), 'bytes', int(bytes), 'last:' .. topic,
  int(number), int(number) .. ':' .. topic, int(clock) .. ' ' .. int(order + 1) .. ' ' .. payload)
redis.call('ZADD', signal_operations_key(id), int(clock), operation)
local old = math.min(redis.call('ZCOUNT', signal_operations_key(id), '-inf', int(clock - OPERATIONS_MS)), operations + 1 - OPERATIONS_KEPT)
if old > 0 then redis.call('ZREMRANGEBYRANK', signal_operations_key(id), 0, old - 1) end
if key ~= '' then
  -- The scores are the order of sending, and not the time, because the clock may go back.
  redis.call('ZADD', signal_keys_key(id), int(order + 1), key)
  redis.call('ZREMRANGEBYRANK', signal_keys_key(id), 0, -1 - SIGNAL_KEYS)
end
local beside = run.beside or ''
if not string.find(beside, 's', 1, true) then redis.call('HSET', run_key(id), 'beside', beside .. 's') end

if run.status == RUNNING then
  notify(worker_of(run.token), 'signal ' .. id)
elseif run.status == WAITING then
  local condition = read_wait(run)
  local reason = not condition and 'unknown' or find_reason(id, condition, clock)
  if reason then wake_run(id, counters, reason) end
elseif is_ended(run.status) then
  local kept = redis.call('PTTL', run_key(id))
  for _, name in ipairs({ signals, signal_operations_key(id), signal_keys_key(id) }) do
    if kept >= 0 then redis.call('PEXPIRE', name, kept) end
  end
end
return { 'sent' }
