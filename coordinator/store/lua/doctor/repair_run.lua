-- repair_run: put a run into the one place that its status names, if the fault still exists.
-- Protects: after a repair that takes the run from its owner, the former owner can't write it any more. No waiting run is lost: a
-- run that can't be read ends as dead, with a reason, and can be revived; if no part of it can be used, it is kept aside for a week.
-- Role: coordinator
-- Keys: admitted, aside, bell, children, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced
-- Keys: parting, ready, results, routes, run, set_aside, signal_keys, signal_operations, signals, starting, suspect
-- Keys: suspect_bell, unreported, waiters, waiting, wake, worker, workers
-- ARGV: now, id, fault, jitter
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   fault: the fault that examine found
--   jitter: a number from 0 to 1, which spreads delays
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, limited, published, endings, unreported, waiting, recover, examine, stray
-- Answers: repaired, kept, changed, blocked
--   kept: the run was moved aside
--   changed: the fault does not exist any more
--   blocked: a key that would be written has another type and has to be repaired first
-- A repair is not a move between statuses: it changes the keys to agree with the run's status, or does what recover, send or due
-- would do.
local clock = server_ms(now)
local faults, run = find_faults(id)
local seen = false
for i = 1, faults and #faults or 0, 2 do seen = seen or faults[i] == fault end
if not seen then return { 'changed' } end

-- The keys that may be written below, and their types.
local types = {
  [live_key()] = 'set', [routes_key()] = 'set', [waiters_key(id)] = 'set', [delayed_key()] = 'zset', [deadlines_key()] = 'zset',
  [waiting_key()] = 'zset', [parting_key()] = 'zset', [ckpt_key(id)] = 'hash', [coordinator_bell_key()] = 'list',
}
for _, status in ipairs(ENDED_STATUSES) do types[ended_key(status)] = 'zset' end
if run.routed then
  types[ready_key(run.route)], types[suspect_key(run.route)] = 'zset', 'zset'
  types[bell_key(run.route)], types[suspect_bell_key(run.route)] = 'list', 'list'
end
if run.group then types[admitted_key(run.group)], types[line_key(run.group)], types[groups_key()] = 'set', 'zset', 'set' end
if run.worker then types[owned_key(run.worker)], types[worker_key(run.worker)] = 'set', 'hash' end
for key, expected in pairs(types) do
  local is = type_of(key)
  if is ~= 'none' and is ~= expected then return { 'blocked' } end
end
if run.once and not string.find(run.once, '^%S+ ') then run.once = false end
local misspent, missing_letters, noted = find_misspent(run), run.open and find_missing_letters(run) or '', run.beside or ''
local uninformed = run.over and find_uninformed_parent(run)
-- A damaged run may have lost these fields. An output that does not exist gets no end.
run.waited, run.beside = true, 'srjegl' .. (redis.call('EXISTS', output_key(id)) == 1 and 'o' or '')

-- If the token of the owner is lost, its epoch is known: it is the newest one of the run.
if run.status == RUNNING and not run.token and run.counted then run.token = int(run.counted.epoch) end

-- Remove the run from all queues except the one in which it belongs.
local function leave_other_queues(home)
  if home ~= 'ready' and run.routed then redis.call('ZREM', ready_key(run.route), id) end
  if home ~= 'suspect' and run.routed then redis.call('ZREM', suspect_key(run.route), id) end
  if home ~= 'delayed' then redis.call('ZREM', delayed_key(), id) end
  if home ~= 'waiting' then redis.call('ZREM', waiting_key(), id) end
  if run.group then redis.call('ZREM', line_key(run.group), id) end
end

local function drop_owner()
  if run.worker then remove_owner(id, run) else redis.call('HDEL', run_key(id), 'token') end
end

local function take_away()
  leave_output(id, run)
  drop_owner()
end

local function fence(counters)
  take_away()
  advance_epoch(counters, clock)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters))
end

-- End a run that can't be read as dead, with the fields that can be read. If too few of them can be read, keep the run aside.
local function set_aside()
  leave_other_queues('')
  take_away()
  redis.call('ZREM', deadlines_key(), 'expire:' .. id, 'cancel:' .. id)
  local usable = run.routed and (run.spec or run.over)
  if not usable then
    redis.call('SREM', live_key(), id)
    if run.group then leave_group(id, run.group, clock) end
    -- RENAME would free an overwritten key before it returns, however large the key is. UNLINK frees the key in the background.
    redis.call('UNLINK', set_aside_key('run:' .. id))
    redis.call('RENAME', run_key(id), set_aside_key('run:' .. id))
    redis.call('PEXPIRE', set_aside_key('run:' .. id), WEEK_MS)
    return { 'kept' }
  end
  if not run.counted then
    local epoch = run.token and tonumber(string.match(run.token, '^(%d+)%-')) or 0
    local score, created = int(clock), int(clock)
    local counters = read_counters(initial_counters(score, created))
    counters.epoch = math.max(epoch + 1, clock)
    redis.call('HSET', run_key(id), 'counters', write_counters(counters))
  end
  if not run.over then
    -- A reason is text, and the damaged part may be any bytes.
    local function escape(c) return string.format('\\x%02x', string.byte(c)) end
    local stored = string.gsub(string.sub(find_unreadable(run), 1, 100), '[^ -~]', escape)
    redis.call('HSET', run_key(id), 'reason', 'it could not be read: ' .. stored)
    note_endings()
    end_run(id, run, DEAD, clock)
  end
  return { 'repaired' }
end

-- Return the spending of a run whose field can't be read: nothing, except for the amounts that its children have added to it. A long
-- list of children is not read to its end, so the amount may be too small.
local function sum_children()
  local spend = read_spend(nil)
  for _, child in ipairs(redis.pcall('SRANDMEMBER', children_key(id), BATCH)) do
    local text, joined = read_fields(run_key(child), 'spend', 'joined')
    if string.match(joined or '', JOINED_PATTERN) == id then
      local its = read_spend(text)
      spend.settled_usd = spend.settled_usd + its.rolled_usd
      spend.settled_tokens = spend.settled_tokens + its.rolled_tokens
      spend.settled_requests = spend.settled_requests + its.rolled_requests
    end
  end
  return spend
end

local function repair_spend()
  local spend = read_spend(run.spend)
  if write_spend(spend) == run.spend then
    local usd, tokens, requests = sum_spend(spend)
    spend.rolled_usd, spend.rolled_tokens = math.min(spend.rolled_usd, usd), math.min(spend.rolled_tokens, tokens)
    spend.rolled_requests = math.min(spend.rolled_requests, requests)
  else
    spend = sum_children()
  end
  store_spend(id, spend, noted)
end

local function repair_fields()
  if missing_letters ~= '' then
    noted = noted .. missing_letters
    redis.call('HSET', run_key(id), 'beside', noted)
  end
  if misspent then repair_spend() end
end

-- Count the stored endings of a step. They are numbered from 1. The key of the results may have been lost since they were counted.
local function recount_endings(parent, base)
  local spawned, counted = read_join(parent, base)
  local ended = 0
  while redis.call('HEXISTS', results_key(parent), base .. '#' .. int(ended + 1)) == 1 do ended = ended + 1 end
  if ended ~= counted then redis.call('HSET', joins_key(parent), base, int(spawned) .. ' ' .. int(ended)) end
end

-- Store the ending of a child for its parent.
local function tell_parent()
  local parent, _, base = string.match(run.joined, JOINED_PATTERN)
  recount_endings(parent, base)
  report_ending(id, run.status, clock)
  recount_endings(parent, base)
end

local function repair_queued()
  local counters = run.counted
  if run.token then fence(counters) end
  local home = counters.strikes >= SUSPECT_STRIKES and 'suspect' or 'ready'
  leave_other_queues(home)
  if run.group then
    -- A run in a ready queue without a place goes to the line.
    if redis.call('SISMEMBER', admitted_key(run.group), id) == 0 then leave_other_queues('') end
    enter(id, run.route, counters, run.group)
  elseif home == 'suspect' then
    add_to_suspect(id, run.route, int(counters.score))
  else
    add_to_ready(id, run.route, int(counters.score))
  end
end

-- The score of a run that was enqueued or retried contains the time at which it was due. A back-off that is lost counts as over.
local function repair_delayed()
  if run.token then fence(run.counted) end
  leave_other_queues('delayed')
  if run.group then leave_group(id, run.group, clock) end
  if not is_scored(delayed_key(), id) then add_to_delayed(id, math.max(clock, run.counted.score % PRIORITY_STEP)) end
end

-- If the condition of a waiting run can't be read, the run is queued: its handler checks again what it waits for.
local function repair_waiting()
  if run.token then fence(run.counted) end
  local condition = read_wait(run)
  local reason = not condition and 'unknown' or find_reason(id, condition, clock)
  leave_other_queues('waiting')
  if run.group then leave_group(id, run.group, clock) end
  if reason then
    wake_run(id, run.counted, reason)
  else
    add_to_waiting(id, condition, clock)
  end
end

local function repair_running()
  note_endings()
  leave_other_queues('')
  if run.worker and is_scored(workers_key(), run.worker) then
    redis.call('SADD', owned_key(run.worker), id)
    redis.call('SADD', live_key(), id)
    if run.group then redis.call('SADD', admitted_key(run.group), id) end
    return
  end
  if run.worker then
    recover_run(id, false, describe_lost_worker(run.worker, clock, jitter, 'its worker had no lease'))
    redis.call('SREM', owned_key(run.worker), id)
    return
  end
  fence(run.counted)
  if run.cancel then redis.call('ZREM', deadlines_key(), 'cancel:' .. id) end
  if not end_if_requested(id, run, run.counted, clock, 'cancelled while its worker was lost') then
    requeue(id, run.counted, 'recover', nil)
  end
end

local function repair_ended()
  leave_other_queues('')
  if uninformed then tell_parent() end
  -- The output of an ended run is complete. Its checkpoint may be gone, so nothing would tell which events are void.
  if run.token then drop_owner() end
  redis.call('SREM', live_key(), id)
  if run.group then leave_group(id, run.group, clock) end
  local ttl = redis.call('PTTL', run_key(id))
  if ttl < 0 then
    end_run(id, run, run.status, clock)
    if run.ended then redis.call('HSET', run_key(id), 'ended', run.ended) end
    return
  end
  if redis.call('PTTL', ckpt_key(id)) == -1 then expire_checkpoint(id, run, run.status, ttl) end
  if run.spec then redis.call('ZADD', ended_key(run.status), 'NX', int(clock + ttl), id) end
end

local function repair_times()
  redis.call('PERSIST', run_key(id))
  redis.call('PERSIST', ckpt_key(id))
  if run.status == RUNNING and run.cancel then
    redis.call('ZADD', deadlines_key(), 'NX', int(clock), 'cancel:' .. id)
    ring(coordinator_bell_key())
  elseif run.status ~= RUNNING and run.expires then
    redis.call('ZADD', deadlines_key(), 'NX', int(tonumber(run.expires) or clock), 'expire:' .. id)
    ring(coordinator_bell_key())
  end
end

if fault == 'unreadable' then return set_aside() end
repair_fields()
if run.over then
  repair_ended()
  return { 'repaired' }
end
repair_times()
if run.status == QUEUED then
  repair_queued()
elseif run.status == DELAYED then
  repair_delayed()
elseif run.status == WAITING then
  repair_waiting()
elseif run.status == RUNNING then
  repair_running()
end
return { 'repaired' }
