-- due: enqueue delayed runs and wake waiting runs whose time has come, carry out the deadlines that have passed, cancel children that
-- their parents have dropped, and admit runs of groups whose rate of starts allows the next run.
-- Protects: a delayed run is enqueued once; a waiting run is woken once; a cancel that the owner did not honour in time is forced.
-- Role: coordinator
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace
-- Keys: paced, parting, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect
-- Keys: suspect_bell, unreported, waiters, waiting, wake, worker
-- ARGV: now, batch
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   batch: the largest number of delayed runs, of waiting runs, and of deadlines, in this call
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, unreported, waiting, cancel
-- Moves: delayed -> queued, waiting -> queued, queued -> cancelled, delayed -> cancelled, waiting -> cancelled, running -> cancelled
-- Unconfirmed: a run that is not moved is still due
-- Answers: ok
--   ok: with the number of delayed and waiting runs that were due, the number of deadlines that passed, the time of the next
--     entry, and the server's time
local clock = server_ms(now)
note_endings()

local POSTPONED_MS = 60000

local function enqueue_delayed(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or run.status ~= DELAYED then
    redis.call('ZREM', delayed_key(), id)
    redis.pcall('ZADD', aside_key(), int(clock), 'delayed:' .. id)
    return
  end
  local queue = counters.strikes >= SUSPECT_STRIKES and suspect_key(run.route) or ready_key(run.route)
  local group
  if run.beside then group = read_fields(run_key(id), 'group') end
  if type(redis.pcall('ZCARD', queue)) ~= 'number' or (group and not are_groups_readable(group)) then
    -- Its queue, or a key of its group, has a wrong type. The run waits for its repair.
    redis.call('ZADD', delayed_key(), int(clock + POSTPONED_MS), id)
    return
  end
  redis.call('ZREM', delayed_key(), id)
  redis.call('HSET', run_key(id), 'status', QUEUED)
  if group then
    enter(id, run.route, counters, group)
  elseif counters.strikes >= SUSPECT_STRIKES then
    add_to_suspect(id, run.route, int(counters.score))
  else
    add_to_ready(id, run.route, int(counters.score))
  end
end

-- Return how many children of a step were enqueued, according to the checkpoint of the parent. The step may enqueue more later.
local function count_enqueued(id, base)
  local more = redis.pcall('HGET', ckpt_key(id), 'more')
  local parts = netstrings(type(more) == 'string' and more or '') or {}
  for i = 1, #parts - 1, 2 do
    local stored, enqueued = string.match(parts[i + 1], '^%d+ (%S+) (%d+)')
    if stored == base and string.sub(parts[i], 1, 5) == 'base:' then return tonumber(enqueued) end
  end
  return 0
end

-- Check some of the children that a run waits for. A child whose key is gone, and which has no ending, counts as dead.
local function examine_children(id, run, base)
  local spawned = is_base(base) and math.min(read_join(id, base) or 0, count_enqueued(id, base)) or 0
  local life = string.match(run.counters, '^%d+')
  local window = math.min(spawned, CHILDREN_EXAMINED)
  local first = math.floor(clock / CHILDREN_EXAMINED_MS) * CHILDREN_EXAMINED
  for i = first, first + window - 1 do
    local index = i % spawned
    if redis.call('EXISTS', run_key(child_id(base, index))) == 0 then
      record_result(id, life, base, int(index), DEAD .. ' ' .. netstring('') .. netstring('it is gone without an ending'), clock)
    end
  end
end

-- Check a run that waits for children. If its condition does not hold, set the time of the next check and return true.
local function still_waits(id, run, condition)
  if not condition.joins then return false end
  for base in pairs(condition.steps) do examine_children(id, run, base) end
  if find_reason(id, condition, clock) then return false end
  add_to_waiting(id, condition, clock)
  return true
end

-- Wake a waiting run whose time has come. If it is too early, the handler checks the condition, and the run is suspended again.
local function wake_due(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or run.status ~= WAITING then
    redis.call('ZREM', waiting_key(), id)
    redis.call('ZADD', aside_key(), int(clock), 'waiting:' .. id)
    return
  end
  local condition = read_wait(run)
  if condition and still_waits(id, run, condition) then return end
  wake_run(id, counters, condition and find_reason(id, condition, clock) or 'time')
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

local delayed = redis.pcall('ZRANGEBYSCORE', delayed_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #delayed do enqueue_delayed(delayed[i]) end
local woken = redis.pcall('ZRANGEBYSCORE', waiting_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #woken do wake_due(woken[i]) end

-- Cancel children that their parents have dropped. Return how many children were examined, and true if more are left.
local function part_children(most)
  local entry, start = unpack(redis.pcall('ZRANGE', parting_key(), 0, 0, 'WITHSCORES'))
  if not entry then return 0, false end
  local base, spawned = read_parting(entry)
  if not base then
    redis.call('ZREM', parting_key(), entry)
    return 1, true
  end
  local from = math.max(0, math.floor(tonumber(start)))
  local to = math.min(spawned, from + most)
  for index = from, to - 1 do
    local id = child_id(base, index)
    local run = read_run(id)
    local counters = run and read_counters(run.counters)
    if counters and not is_ended(run.status) and redis.call('HEXISTS', run_key(id), 'joined') == 1 then
      cancel_run(id, run, counters, clock, PARTING_GRACE_MS, 'cancelled: its parent does not wait for it any more')
    end
  end
  if to >= spawned then redis.call('ZREM', parting_key(), entry) else redis.call('ZADD', parting_key(), to, entry) end
  return math.max(0, to - from), redis.call('EXISTS', parting_key()) == 1
end
local parted, more_to_part = part_children(tonumber(batch))

local passed = redis.pcall('ZRANGEBYSCORE', deadlines_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #passed do
  redis.call('ZREM', deadlines_key(), passed[i])
  local what, id = string.match(passed[i], '^(%a+):(.+)$')
  if what == 'expire' then expire(id) elseif what == 'cancel' then force_cancel(id) end
end

local paced = redis.pcall('ZRANGEBYSCORE', paced_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #paced do
  redis.call('ZREM', paced_key(), paced[i])
  fill(paced[i], clock)
end

-- If one key can't be read, the entries of the other keys were still carried out. The coordinator reports the error.
for _, entries in ipairs({ delayed, woken, passed, paced }) do
  if entries.err then return entries end
end
local next_entry = ''
for _, key in ipairs({ delayed_key(), waiting_key(), deadlines_key(), paced_key() }) do
  local first, time = unpack(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES'))
  if first and tonumber(time) < FAR_FUTURE and (next_entry == '' or tonumber(time) < tonumber(next_entry)) then next_entry = int(tonumber(time)) end
end
if more_to_part then next_entry = int(clock) end
return { 'ok', #delayed + #woken, #passed + parted, next_entry, int(clock) }
