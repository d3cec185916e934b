-- due: enqueue a batch of delayed runs whose time has come, wake waiting runs whose time has come, and carry out the deadlines that have passed.
-- Protects: a delayed run is enqueued once; a waiting run is woken once; a cancel that the owner did not honour in time is forced.
-- Role: coordinator
-- Keys: aside, bell, ckpt, coordinator_bell, deadlines, delayed, ended, live, messages, namespace, once, owned, ready, routes
-- Keys: run, signal_keys, signal_operations, signals, suspect, suspect_bell, waiters, waiting, wake, worker
-- ARGV: now, batch
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   batch: the largest number of delayed runs, of waiting runs, and of deadlines, in this call
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, waiting
-- Moves: delayed -> queued, waiting -> queued, queued -> cancelled, delayed -> cancelled, waiting -> cancelled, running -> cancelled
-- Unconfirmed: a run that is not moved is still due
-- Answers: ok
--   ok: with the number of delayed and waiting runs that were due, the number of deadlines that passed, the time of the next entry, and the
--     server's time
local clock = server_ms(now)

local function enqueue_delayed(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  redis.call('ZREM', delayed_key(), id)
  if not counters or run.status ~= DELAYED then
    redis.call('ZADD', aside_key(), int(clock), 'delayed:' .. id)
    return
  end
  redis.call('HSET', run_key(id), 'status', QUEUED)
  if counters.strikes >= SUSPECT_STRIKES then
    add_to_suspect(id, run.route, int(counters.score))
  else
    add_to_ready(id, run.route, int(counters.score))
  end
end

-- A run that is woken too early looks at its condition and is suspended again, so nothing more is checked here.
local function wake_due(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or run.status ~= WAITING then
    redis.call('ZREM', waiting_key(), id)
    redis.call('ZADD', aside_key(), int(clock), 'waiting:' .. id)
    return
  end
  wake_run(id, counters, 'time')
end

local function expire(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or is_ended(run.status) or run.status == RUNNING then return end
  leave_queues(id, run.route)
  end_cancelled(id, run, counters, clock, 'expired before a worker took it')
end

local function force_cancel(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or run.status ~= RUNNING or not run.cancel then return end
  remember_owner(id, run.token)
  remove_owner(id, run)
  advance_epoch(counters, clock)
  append_story(id, counters, clock, 'forced', 'it was cancelled, and did not stop in time')
  redis.call('HSET', run_key(id), 'spent', add_spent_time(id, run, clock))
  end_cancelled(id, run, counters, clock, 'cancelled by force: its handler did not stop in time')
end

local delayed = redis.call('ZRANGEBYSCORE', delayed_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #delayed do enqueue_delayed(delayed[i]) end
local woken = redis.call('ZRANGEBYSCORE', waiting_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #woken do wake_due(woken[i]) end
local passed = redis.call('ZRANGEBYSCORE', deadlines_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #passed do
  redis.call('ZREM', deadlines_key(), passed[i])
  local what, id = string.match(passed[i], '^(%a+):(.+)$')
  if what == 'expire' then expire(id) elseif what == 'cancel' then force_cancel(id) end
end

local next = ''
for _, key in ipairs({ delayed_key(), waiting_key(), deadlines_key() }) do
  local first, time = unpack(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES'))
  if first and tonumber(time) < FAR_FUTURE and (next == '' or tonumber(time) < tonumber(next)) then next = int(tonumber(time)) end
end
return { 'ok', #delayed + #woken, #passed, next, int(clock) }
