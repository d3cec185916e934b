-- Ending an attempt or a run, and requeueing a run. A script calls these functions after all its guards, and none of them can
-- fail.

-- Return the fields of a run that the scripts of its owner need; nil if the run can't be read.
local function read_run(id)
  local run = read_named(run_key(id), 'status', 'token', 'last', 'route', 'counters', 'retention', 'once', 'cancel', 'kill',
    'spent', 'started', 'waited', 'beside', 'wait')
  if not run or not run.status or not run.route or (run.status == RUNNING and not run.token) then return nil end
  return run
end

-- A script that ends many runs calls begin_batch first and flush_batch at its end. All writes to the same key are then sent as one
-- command. If a key is damaged, the other keys are still written, and the script answers with the error.
local pending_writes
local function begin_batch() pending_writes, parents_read = {}, {} end

local function write(command, key, first, second)
  -- A damaged key must not stop the ending of a run.
  if not pending_writes then return redis.pcall(command, key, unpack({ first, second })) end
  local values = pending_writes[key]
  if not values then
    values = { command = command }
    pending_writes[key] = values
  end
  values[#values + 1] = first
  if second then values[#values + 1] = second end
end

local function flush_batch()
  local broken
  for key, values in pairs(pending_writes) do
    for from = 1, #values, BATCH do
      local reply = redis.pcall(values.command, key, unpack(values, from, math.min(from + BATCH - 1, #values)))
      if type(reply) == 'table' and reply.err then broken = reply end
    end
  end
  return broken
end

-- Remove the run from the set of its owner, and remove the token of the run.
local function remove_owner(id, run)
  local worker = worker_of(run.token)
  write('SREM', owned_key(worker), id)
  redis.call('HDEL', run_key(id), 'token')
  if run.cancel then
    redis.pcall('HDEL', worker_key(worker), 'cancel:' .. id)
    redis.pcall('ZREM', deadlines_key(), 'cancel:' .. id)
  end
end

-- Return "<worker> <version of its code>", which is stored with a run to show which worker had it.
local function describe_owner(worker)
  local code = redis.pcall('HGET', worker_key(worker), 'code')
  return worker .. ' ' .. (type(code) == 'string' and code or '')
end
local function remember_owner(id, token) redis.call('HSET', run_key(id), 'prev', describe_owner(worker_of(token))) end

-- Return the number of phases in a checkpoint: the number of its fields, without the fields that are not phases.
local function count_phases(id)
  local others = 1 -- the head
  for _, field in ipairs({ 'state', 'unfinished', 'inputs', 'more' }) do others = others + redis.call('HEXISTS', ckpt_key(id), field) end
  -- Only the checkpoint of a run that has waited has the part `more`, and fields of finished waits.
  local names = redis.call('HEXISTS', ckpt_key(id), 'more') == 1 and redis.call('HKEYS', ckpt_key(id)) or {}
  for i = 1, #names do
    if string.sub(names[i], 1, 5) == 'wait:' then others = others + 1 end
  end
  return redis.call('HLEN', ckpt_key(id)) - others
end

-- Append an entry to the story of a run: an attempt that ended without completing, or a revival. The oldest entries are
-- dropped. The story is a field of the run, so that both end together, and a run that completes at its first attempt has none.
-- An entry is netstrings: how, numbers (ATTEMPT in store/formats.py), worker, code, why, error
local function append_story(id, counters, now, how, why, error)
  local started, story, prev = unpack(redis.call('HMGET', run_key(id), 'started', 'story', 'prev'))
  local worker, code = string.match(prev or '', '^(%S*) ?(.*)$')
  local head = read_head(id)
  local saved = head or EMPTY_HEAD
  local numbers = write_attempt({
    life = counters.life, attempt = counters.attempt, started = tonumber(started or 0) or 0, ended = now,
    saved = saved.updated, iteration = saved.iteration, messages = saved.length, phases = head and count_phases(id) or 0,
  })
  local entry = netstring(how) .. netstring(numbers) .. netstring(worker) .. netstring(string.sub(code, 1, 100))
    .. netstring(why or '') .. netstring(error or '')
  local entries = netstrings(story or '') or {}
  entries[#entries + 1] = entry
  local size, from = 0, #entries
  while from > 0 and #entries - from < STORY_ENTRIES and (size == 0 or size + #entries[from] <= STORY_BYTES) do
    size = size + #entries[from]
    entries[from] = netstring(entries[from])
    from = from - 1
  end
  redis.call('HSET', run_key(id), 'story', table.concat(entries, '', from + 1))
end

-- Wake the clients that wait for a run. This only saves time: each client also asks again by itself. So a damaged key is ignored,
-- because an error would stop the script while the endings of other runs are half written.
local function wake_waiters(id)
  local clients = redis.pcall('SMEMBERS', waiters_key(id))
  for i = 1, #clients do
    local wake = wake_key(clients[i])
    redis.pcall('RPUSH', wake, id)
    redis.pcall('LTRIM', wake, -WAKE_LENGTH, -1)
    redis.call('PEXPIRE', wake, WAKE_MS)
  end
  if #clients > 0 then redis.call('UNLINK', waiters_key(id)) end
end

-- Let the idempotency key of an ended run expire with the run, or after its own TTL. Another run may have the key by now.
local function expire_once_key(id, run, kept)
  local ttl, key = string.match(run.once, '^(%S+) (.*)$')
  local _, kind = string.match(run.route, ROUTE_PARTS)
  if not (key and kind) then return end -- It can't be read, so nothing is known of the key that it names.
  local once = once_key(kind, key)
  local named = redis.pcall('GET', once)
  if type(named) ~= 'string' or string.sub(named, 1, #id) ~= id then return end
  ttl = tonumber(ttl) or kept
  if ttl <= 0 then redis.call('DEL', once) else redis.call('PEXPIRE', once, int(ttl)) end
end

-- Drop the checkpoint of a completed run, unless its handler keeps the messages. The checkpoint of any other ended run expires with
-- the run: a revive may need it.
local function expire_checkpoint(id, run, status, kept)
  if (status == COMPLETED and not run.keeps) or kept <= 0 then return drop_checkpoint(id) end
  local head = read_head(id)
  if head then redis.call('PEXPIRE', messages_key(id, int(head.generation)), int(kept)) end
  redis.call('PEXPIRE', ckpt_key(id), int(kept))
end

-- Let the threads of a run's graphs expire after `kept` ms; 0 deletes them, and nil keeps them without a TTL.
local function keep_graphs(id, kept)
  local function keep(key)
    if not kept then return redis.call('PERSIST', key) end
    if kept > 0 then return redis.call('PEXPIRE', key, int(kept)) end
    redis.call('UNLINK', key)
  end
  for _, thread in ipairs(redis.pcall('ZRANGE', graph_threads_key(id), 0, -1)) do
    keep(graph_key(id, thread))
    keep(graph_index_key(id, thread))
  end
  keep(graph_threads_key(id))
end

-- Delete or expire the other keys of an ended run, and store its ending for its parent. Signals, results and effects of a completed
-- run are deleted, because no later attempt needs them. Those of any other ended run expire with the run, because a revived run may
-- need them. Operations stay for as long as a client may repeat its send. Children that have not ended are dropped.
-- The output gets its end. It and the run's graphs are kept as long as the run. The next run of the group gets the place of the
-- run. `now` is nil for a run that has ended before and is removed.
local function expire_beside(id, run, status, kept, now)
  local beside = run.beside
  local keeps = status ~= COMPLETED and kept > 0
  local function expire(key) if keeps then redis.call('PEXPIRE', key, int(kept)) else redis.call('UNLINK', key) end end
  if string.find(beside, 's', 1, true) then
    expire(signals_key(id))
    local ttl = int(keeps and kept or TOMBSTONE_MS)
    redis.call('PEXPIRE', signal_keys_key(id), ttl)
    redis.call('PEXPIRE', signal_operations_key(id), ttl)
  end
  if string.find(beside, 'r', 1, true) then
    drop_all_steps(id)
    expire(joins_key(id))
    expire(results_key(id))
  end
  if string.find(beside, 'e', 1, true) then expire(effects_key(id)) end
  if string.find(beside, 'o', 1, true) then
    if now then
      end_output(id, run, status)
      redis.call('PEXPIRE', output_key(id), int(kept > 0 and kept or TOMBSTONE_MS))
    else
      redis.call('UNLINK', output_key(id))
    end
  end
  if string.find(beside, 'g', 1, true) then keep_graphs(id, kept) end
  if now and string.find(beside, 'j', 1, true) then report_ending(id, status, now) end
  if now and string.find(beside, 'l', 1, true) then
    local group = read_fields(run_key(id), 'group')
    if group then leave_group(id, group, now) end
  end
end

-- A function that end_run calls for each run, in scripts that call note_endings (see unreported.lua); nil in all others.
local note_ending

-- End a run as completed, failed, cancelled or dead. The caller has removed its owner. Further fields and values of its hash are
-- written in the same command as the status.
local function end_run(id, run, status, now, ...)
  local key, kept = run_key(id), run.retention and tonumber(run.retention) or RETENTION_MS[status]
  -- The run stays known while a client may repeat its enqueue or a worker its ending.
  if kept > 0 and kept < TOMBSTONE_MS then kept = TOMBSTONE_MS end
  redis.call('HSET', key, 'status', status, 'ended', int(now), ...)
  write('SREM', live_key(), id)
  if run.beside then expire_beside(id, run, status, kept, now) end -- The end of the output depends on the checkpoint.
  if has_schema(run.route) then expire_checkpoint(id, run, status, kept) end
  if run.once then expire_once_key(id, run, kept) end
  if kept <= 0 then
    -- The retention is 0: only a tombstone stays, for longer than any client repeats its call.
    redis.call('HDEL', key, 'result', 'error', 'note', 'prev', 'story', 'kill', 'killed', 'waited', SPEC_FIELDS)
    redis.call('PEXPIRE', key, TOMBSTONE_MS)
  else
    redis.call('PEXPIRE', key, int(kept))
    write('ZADD', ended_key(status), int(now + kept), id)
  end
  if run.waited then wake_waiters(id) end
  if note_ending then note_ending(id, run, status, now) end
end

-- Progress since the last strike resets strikes and back-off. Progress since the last failure resets failures.
local function reset_after_progress(counters, progress)
  if progress > counters.struck then counters.strikes, counters.backoffs = 0, 0 end
  if progress > counters.failed then counters.failures = 0 end
end

-- Count a strike, unless the run made progress since the last one. `new_endings` is true if children of the run have ended since its
-- last loss, which counts like progress.
local function add_strike(counters, progress, new_endings)
  if new_endings then counters.strikes, counters.backoffs = 0, 0 end
  if progress > counters.struck or new_endings then
    counters.struck = math.max(counters.struck, progress)
  else
    counters.strikes = counters.strikes + 1
  end
end

local function read_progress(id)
  local head = read_head(id)
  return head and head.progress or 0
end

-- Add the time of the run's last attempt, until `till`, to its `spent` field, and return the new value. The script does not know
-- when in the attempt the run made progress, so it takes the time of the last save. A released run has to repeat its unsaved work,
-- so its time without progress starts again: a deploy must not make a deadline kill the run.
local function add_spent_time(id, run, till, released)
  local spent, head = read_spent(run.spent), has_schema(run.route) and read_head(id)
  local took = math.max(0, till - (tonumber(run.started) or till))
  spent.used, spent.idle = spent.used + took, spent.idle + took
  if head and head.progress > spent.progress then
    spent.progress, spent.idle = head.progress, math.max(0, till - head.updated)
  end
  if released then spent.idle = 0 end
  return write_spent(spent)
end

-- Return the next back-off in ms: 2 s, 4 s, … 5 min, spread by the caller's jitter (a number from 0 to 1).
local function next_backoff(counters, jitter)
  counters.backoffs = counters.backoffs + 1
  local wait = math.min(2000 * 2 ^ (counters.backoffs - 1), 300000)
  return math.floor(wait * (0.75 + 0.5 * (tonumber(jitter) or 0.5)))
end

-- Every new owner, and every loss of an owner, gives the run a higher epoch: tokens of earlier epochs are fenced.
local function advance_epoch(counters, now) counters.epoch = math.max(counters.epoch + 1, now) end

-- Give the run the score of its priority at another time.
local function rescore(counters, ms) counters.score = math.floor(counters.score / PRIORITY_STEP) * PRIORITY_STEP + ms end

-- Make the run wait for its next attempt: as delayed until `due`, or in its ready queue if `due` is nil. The run keeps its score.
local function requeue(id, counters, cause, due)
  local key = run_key(id)
  local route, group = unpack(redis.call('HMGET', key, 'route', 'group'))
  redis.call('HSET', key, 'counters', write_counters(counters), 'cause', cause, 'status', due and DELAYED or QUEUED)
  if due then
    add_to_delayed(id, due)
    if group then leave_group(id, group, server_ms(now)) end
  elseif group then
    enter(id, route, counters, group)
  elseif counters.strikes >= SUSPECT_STRIKES then
    add_to_suspect(id, route, int(counters.score))
  else
    add_to_ready(id, route, int(counters.score))
  end
end

-- Check the call of an owner that ends its attempt. Return the run with its parsed counters and the plan of its delta; or nil and
-- the answer to give: fenced, gap, or the first answer to the same call.
local function read_owned_run(id, token, call, delta)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters then return nil, { 'fenced' } end
  local caller, first_answer = check_caller(token, run, call)
  if caller == 'fenced' then return nil, { 'fenced' } end
  if caller == 'repeated' then return nil, repeat_answer(id, run, first_answer) end
  local plan, word
  if delta ~= '' then plan, word = plan_delta(id, delta) end
  if word == 'gap' then return nil, { 'gap' } end
  run.counters, run.plan = counters, plan
  return run
end

-- End an attempt: save its delta, remove its owner, and append the attempt to the story. Return the run's progress.
-- how: released, stopped, retried, rejected or failed; or suspended, which adds no entry to the story. error: the error that the
-- handler raised, without its traceback. why: a further explanation, in words.
local function end_attempt(id, run, token, now, how, error, why)
  if run.plan then
    apply_delta(run.plan, now)
    if run.plan.output then write_output(id, token, run.plan.output, now) end
    run.route, run.beside = read_fields(run_key(id), 'route', 'beside') -- The delta and the output may have changed them.
  end
  leave_output(id, run)
  remember_owner(id, token)
  remove_owner(id, run)
  local requested = run.cancel and 'a cancel was asked for' or run.kill and 'it was killed by its critic' or nil
  if how ~= 'suspended' or requested then append_story(id, run.counters, now, how, requested or why, error) end
  redis.call('HSET', run_key(id), 'spent', add_spent_time(id, run, now, how == 'released'))
  local progress = read_progress(id)
  reset_after_progress(run.counters, progress)
  return progress
end

-- Store and return the number of times that the run was lost without progress. A loss after new progress sets the number to 0.
-- Losses are counted apart from strikes, because a loss is not a strike if another run of the process is to blame for it.
local function count_loss(id, progress, new_endings)
  local count, before = string.match(redis.call('HGET', run_key(id), 'losses') or '', '^(%d+) (%d+)$')
  count = (progress > tonumber(before or 0) or new_endings) and 0 or tonumber(count or 0) + 1
  redis.call('HSET', run_key(id), 'losses', int(count) .. ' ' .. int(progress))
  return count
end

local function is_struck_out(counters, losses) return counters.strikes >= STRIKES or losses >= BACKSTOP end

local function explain_death(counters, what)
  if counters.strikes >= STRIKES then
    return string.format('%d strikes without progress; the last: %s', counters.strikes, what)
  end
  return string.format('%d losses without progress; the last: %s', BACKSTOP, what)
end

local function end_dead(id, run, counters, now, what)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'reason', explain_death(counters, what))
  end_run(id, run, DEAD, now)
end

local function end_cancelled(id, run, counters, now, reason)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'reason', reason)
  end_run(id, run, CANCELLED, now)
end

-- End the run if a user's cancel or a kill at its deadline was requested during the attempt. Return its new status, or nil if
-- neither was requested. A run with such a request is never requeued.
local function end_if_requested(id, run, counters, now, reason)
  if run.cancel then
    end_cancelled(id, run, counters, now, reason)
    return CANCELLED
  end
  if run.kill then
    redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'error', run.kill)
    end_run(id, run, FAILED, now)
    return FAILED
  end
end
