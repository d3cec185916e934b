-- due: moves a batch of delayed runs whose time has come into their lines, and works off the deadlines.
-- Protects: a delayed run is moved once; a cancel that the owner did not honour in time is carried out by force.
-- ARGV: now, batch
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: delayed -> queued, queued -> cancelled, delayed -> cancelled, waiting -> cancelled, running -> cancelled
-- Unconfirmed: what is not moved is still due
-- Answers: ok
local clock = server_ms(now)

local function start(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  redis.call('ZREM', delayed_key(), id)
  if not counters or run.status ~= 'delayed' then
    redis.call('ZADD', aside_key(), int(clock), 'delayed:' .. id)
    return
  end
  redis.call('HSET', run_key(id), 'status', 'queued')
  if counters.strikes >= STRIKES - 1 then
    into_suspect(id, run.route, int(counters.score))
  else
    into_ready(id, run.route, int(counters.score))
  end
end

local function leave_line(id, run)
  redis.call('ZREM', ready_key(run.route), id)
  redis.call('ZREM', suspect_key(run.route), id)
  redis.call('ZREM', delayed_key(), id)
end

local function expire(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or (run.status ~= 'queued' and run.status ~= 'delayed' and run.status ~= 'waiting') then return end
  leave_line(id, run)
  end_cancelled(id, run, counters, clock, 'expired before a worker took it')
end

local function force(id)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or run.status ~= 'running' or not run.cancel then return end
  remember_owner(id, run.token)
  let_go(id, run)
  grow_epoch(counters, clock)
  tell(id, counters, clock, 'forced', 'it was cancelled, and did not stop in time')
  redis.call('HSET', run_key(id), 'spent', spent_until(id, run, clock))
  end_cancelled(id, run, counters, clock, 'cancelled by force: its handler did not stop in time')
end

local moved = redis.call('ZRANGEBYSCORE', delayed_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #moved do start(moved[i]) end
local passed = redis.call('ZRANGEBYSCORE', deadlines_key(), '-inf', int(clock), 'LIMIT', 0, batch)
for i = 1, #passed do
  redis.call('ZREM', deadlines_key(), passed[i])
  local what, id = string.match(passed[i], '^(%a+):(.+)$')
  if what == 'expire' then expire(id) elseif what == 'cancel' then force(id) end
end

local next = ''
for _, key in ipairs({ delayed_key(), deadlines_key() }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[1] and (next == '' or tonumber(first[2]) < tonumber(next)) then next = int(tonumber(first[2])) end
end
return { 'ok', #moved, #passed, next, int(clock) }
