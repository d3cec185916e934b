-- Taking the runs of a condemned worker. Their checkpoints stay stored. A batch delays every other caller of the server, so values
-- that are the same for all runs of a batch are read and written once.

-- Condemn a worker: mark it as lost, so that its lease is never renewed again. `how` is 'struck', or 'excused' if its runs get no
-- strike. The time of its last heartbeat is stored, because the attempts of its runs count until then. That time could not be computed
-- later, because the deadline of the lease is set to 0. The places of its external calls become free. The worker can't get new
-- ones, so this is done once, and not for each batch of its runs.
local function condemn(worker, how)
  local deadline, lease = redis.call('ZSCORE', workers_key(), worker), redis.call('HGET', worker_key(worker), 'lease')
  if deadline and tonumber(deadline) > 0 then
    redis.call('HSET', worker_key(worker), 'seen', int(tonumber(deadline) - (tonumber(lease) or 0)))
    forget_calls(worker)
  end
  redis.call('HSET', worker_key(worker), 'condemned', how)
  redis.call('ZADD', workers_key(), 'XX', 0, worker)
  publish_remaining_limits()
end

-- Take one run from its owner. Return its new status (queued, delayed, dead, cancelled, failed), 'aside' if the run can't be read
-- or its queue has a wrong type, or 'stale' if the worker does not own the run any more. `lost` is the value that
-- describe_lost_worker returns; `lost.why` is the reason as text.
local function recover_run(id, struck, lost)
  local now, key = lost.now, run_key(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters then
    redis.pcall('ZADD', aside_key(), int(now), 'owned:' .. id)
    return 'aside'
  end
  if not run.token or worker_of(run.token) ~= lost.worker then return 'stale' end
  advance_epoch(counters, now)
  local till = math.min(now, lost.seen or tonumber(run.started) or 0)
  redis.call('HSET', key, 'prev', lost.prev, 'spent', add_spent_time(id, run, till))
  append_story(id, counters, lost.over, 'recovered', lost.why)
  leave_output(id, run)
  if run.cancel or run.kill then
    remove_owner(id, run)
    return end_if_requested(id, run, counters, now, 'cancelled while its worker was lost')
  end
  redis.call('HDEL', key, 'token')
  local progress = has_schema(run.route) and read_progress(id) or 0
  counters.recoveries = counters.recoveries + 1
  reset_after_progress(counters, progress)
  local new_endings = run.beside and note_new_endings(id, run)
  if struck then add_strike(counters, progress, new_endings) end
  if is_struck_out(counters, lost.excused and 0 or count_loss(id, progress, new_endings)) then
    end_dead(id, run, counters, now, lost.why)
    return 'dead'
  end
  local delayed = counters.strikes >= SUSPECT_STRIKES
  local group
  if run.beside then group = read_fields(run_key(id), 'group') end
  redis.call('HSET', key, 'counters', write_counters(counters), 'cause', 'recover', 'status', delayed and DELAYED or QUEUED)
  if delayed then
    add_to_delayed(id, now + 1000 + math.floor(1000 * lost.jitter))
    if group then leave_group(id, group, now) end
    return 'delayed'
  end
  if group then
    enter(id, run.route, counters, group)
    return 'queued'
  end
  local added
  if lost.rung[run.route] then
    added = type(redis.pcall('ZADD', ready_key(run.route), int(counters.score), id)) == 'number'
  else
    added = add_to_ready(id, run.route, int(counters.score))
    lost.rung[run.route] = added
  end
  if added then return 'queued' end
  redis.pcall('ZADD', aside_key(), int(now), 'queued:' .. id)
  return 'aside'
end

-- Return the values that are the same for all runs of a lost worker: the worker and its code (prev), when its last heartbeat was (seen),
-- when its attempts ended at the latest (over), and the routes whose bells were rung (rung).
local function describe_lost_worker(worker, now, jitter, why)
  local seen, lease = read_fields(worker_key(worker), 'seen', 'lease')
  seen = seen and tonumber(seen)
  -- If no coordinator recovered the runs for hours, no worker executed them in that time, so the attempt does not include it.
  local over = seen and math.min(now, seen + (tonumber(lease) or 0)) or now
  return {
    worker = worker, now = now, jitter = tonumber(jitter), why = why, prev = describe_owner(worker), rung = {},
    seen = seen, over = over,
  }
end

-- Return a sentence that says why a run was lost. `blame` is the id of the run that blocked the event loop of the lost process.
local function explain_loss(id, blame, why)
  if blame == id then return 'it blocked the event loop of its process, which was replaced' end
  if blame ~= '' and blame ~= 'nobody' then return 'its process was replaced: run ' .. blame .. ' had blocked its event loop' end
  return why
end

-- Take a batch of a condemned worker's runs. Return the number of runs by new status, and how many runs are left. The worker's
-- entry is removed with the last run. The runs leave the worker's set at the end: if a damaged key stops the script, a repeated
-- call finds them again. `why` says in words what happened to the worker.
local function recover_batch(worker, now, batch, excused, blame, jitter, why)
  local owned = owned_key(worker)
  local ids = redis.call('SRANDMEMBER', owned, batch)
  local counts = { queued = 0, delayed = 0, dead = 0, cancelled = 0, failed = 0, aside = 0, stale = 0 }
  local lost = describe_lost_worker(worker, now, jitter, why)
  lost.excused = excused
  for i = 1, #ids do
    local struck = not excused and (blame == '' or blame == ids[i])
    lost.why = explain_loss(ids[i], blame, why)
    local became = recover_run(ids[i], struck, lost)
    counts[became] = counts[became] + 1
  end
  for from = 1, #ids, BATCH do redis.call('SREM', owned, unpack(ids, from, math.min(from + BATCH - 1, #ids))) end
  local left = redis.call('SCARD', owned)
  if left == 0 then
    redis.call('ZREM', workers_key(), worker)
    redis.call('DEL', inbox_key(worker))
    redis.call('PEXPIRE', worker_key(worker), TOMBSTONE_MS)
  end
  return { 'ok', counts.queued, counts.delayed, counts.dead, counts.cancelled, counts.aside, left, counts.failed }
end
