-- Taking interrupted runs from a worker that is condemned. Checkpoints stay where they are. A batch of them holds up every other
-- caller of the server, so what is the same for all of them is read and written once.

-- The worker renews no more. Its last good beat is kept: until then its runs have used their time.
local function condemn(worker, how)
  local deadline, lease = redis.call('ZSCORE', workers_key(), worker), redis.call('HGET', worker_key(worker), 'lease')
  if deadline and tonumber(deadline) > 0 then
    redis.call('HSET', worker_key(worker), 'seen', int(tonumber(deadline) - (tonumber(lease) or 0)))
  end
  redis.call('HSET', worker_key(worker), 'condemned', how)
  redis.call('ZADD', workers_key(), 'XX', 0, worker)
end

-- One run back from its owner. `lost` is what all of the batch share: worker, now, jitter, why (in words), prev (who held them),
-- seen (when the worker was last), over (when its attempts were, at the latest), rung (the lines that were). Answers what became
-- of it.
local function recover_one(id, struck, lost)
  local now, key = lost.now, run_key(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters then
    redis.call('ZADD', aside_key(), int(now), 'owned:' .. id)
    return 'aside'
  end
  if not run.token or worker_of(run.token) ~= lost.worker then return 'stale' end
  grow_epoch(counters, now)
  redis.call('HSET', key, 'prev', lost.prev, 'spent', spent_until(id, run, math.min(now, lost.seen or tonumber(run.started) or 0)))
  tell(id, counters, lost.over, 'recovered', lost.why)
  if run.cancel or run.kill then
    let_go(id, run)
    return end_as_asked(id, run, counters, now, 'cancelled while its worker was lost')
  end
  redis.call('HDEL', key, 'token')
  local progress = string.find(run.route, '@0', -2, true) and 0 or progress_of(id)
  counters.recoveries = counters.recoveries + 1
  settle(counters, progress)
  if struck then strike(counters, progress) end
  if struck_out(counters) then
    bury(id, run, counters, now, lost.why)
    return 'dead'
  end
  local delayed = counters.strikes >= STRIKES - 1
  redis.call('HSET', key, 'counters', write_counters(counters), 'cause', 'recover', 'status', delayed and 'delayed' or 'queued')
  if delayed then
    into_delayed(id, now + 1000 + math.floor(1000 * lost.jitter))
    return 'delayed'
  end
  if lost.rung[run.route] then
    redis.call('ZADD', ready_key(run.route), int(counters.score), id)
  else
    into_ready(id, run.route, int(counters.score))
    lost.rung[run.route] = true
  end
  return 'queued'
end

local function lost_with(worker, now, jitter, why)
  local known = fields(worker_key(worker), 'seen', 'lease') or {}
  local seen = known[1] and tonumber(known[1])
  -- where nobody took them back for hours, that was no work, but time without an owner
  local over = seen and math.min(now, seen + (tonumber(known[2]) or 0)) or now
  return {
    worker = worker, now = now, jitter = tonumber(jitter), why = why, prev = owner_named(worker), rung = {},
    seen = seen, over = over,
  }
end

-- Why a run was lost, in words. A run is blamed where it blocked the event loop of its process, and with it all the others.
local function why_lost(id, blame, why)
  if blame == id then return 'it blocked the event loop of its process, which was replaced' end
  if blame ~= '' and blame ~= 'nobody' then return 'its process was replaced: run ' .. blame .. ' had blocked its event loop' end
  return why
end

-- A batch of a condemned worker's runs. Answers how many it took, and whether all are taken; then the entry goes too. They leave
-- the worker's set at the end: where a broken key stops the script in the middle, the rest is found again.
-- why says in words what became of the worker.
local function recover_batch(worker, now, batch, excused, blame, jitter, why)
  local owned = owned_key(worker)
  local ids = redis.call('SRANDMEMBER', owned, batch)
  local counts = { queued = 0, delayed = 0, dead = 0, cancelled = 0, failed = 0, aside = 0, stale = 0 }
  local lost = lost_with(worker, now, jitter, why)
  for i = 1, #ids do
    local struck = not excused and (blame == '' or blame == ids[i])
    lost.why = why_lost(ids[i], blame, why)
    local became = recover_one(ids[i], struck, lost)
    counts[became] = counts[became] + 1
  end
  for from = 1, #ids, 1000 do redis.call('SREM', owned, unpack(ids, from, math.min(from + 999, #ids))) end
  local left = redis.call('SCARD', owned)
  if left == 0 then
    redis.call('ZREM', workers_key(), worker)
    redis.call('DEL', inbox_key(worker))
    redis.call('PEXPIRE', worker_key(worker), 60000)
  end
  return { 'ok', counts.queued, counts.delayed, counts.dead, counts.cancelled, counts.aside, left, counts.failed }
end
