-- What ends a run, and what puts it back. Every function here is called after all guards, and nothing in it can fail.
local STRIKES = 3
local BACKSTOP = 100 -- recoveries
local KEPT = { completed = 86400000, failed = 604800000, cancelled = 604800000, dead = 604800000 }
local TOMBSTONE = 60000
local TOLD, TOLD_BYTES = 20, 16384 -- entries of a story, and their bytes

-- What the owner's scripts need of a run; nil where it can't be read.
local function read_run(id)
  local v = fields(run_key(id), 'status', 'token', 'last', 'route', 'counters', 'retention', 'once', 'cancel',
    'kill', 'spent', 'started', 'waited')
  if not v or not v[1] or not v[4] or (v[1] == 'running' and not v[2]) then return nil end
  return {
    status = v[1], token = v[2], last = v[3], route = v[4], counters = v[5], retention = v[6], once = v[7], cancel = v[8],
    kill = v[9], spent = v[10], started = v[11], waited = v[12],
  }
end

-- A script that ends many runs calls `write_later` first, and `write_together` at its end: what their endings write to the same
-- keys is one command then. Where a key is broken the others are written all the same, and the error is answered.
local together
local function write_later() together = {} end

local function write(command, key, ...)
  if not together then return redis.call(command, key, ...) end
  local line = together[key]
  if not line then
    line = { command = command }
    together[key] = line
  end
  for _, value in ipairs({ ... }) do line[#line + 1] = value end
end

local function write_together()
  local broken
  for key, line in pairs(together) do
    for from = 1, #line, 1000 do
      local reply = redis.pcall(line.command, key, unpack(line, from, math.min(from + 999, #line)))
      if type(reply) == 'table' and reply.err then broken = reply end
    end
  end
  return broken
end

-- The run is no longer held by the owner of its token.
local function let_go(id, run)
  local worker = worker_of(run.token)
  write('SREM', owned_key(worker), id)
  redis.call('HDEL', run_key(id), 'token')
  if run.cancel then
    redis.call('HDEL', worker_key(worker), 'cancel:' .. id)
    redis.call('ZREM', deadlines_key(), 'cancel:' .. id)
  end
end

-- Who held a run, for those who look at it later: the worker and the version of its code.
local function owner_named(worker)
  local code = redis.pcall('HGET', worker_key(worker), 'code')
  return worker .. ' ' .. (type(code) == 'string' and code or '')
end
local function remember_owner(id, token) redis.call('HSET', run_key(id), 'prev', owner_named(worker_of(token))) end

-- What is saved of a run, as numbers: when, iteration, messages, phases.
local function saved_so_far(id)
  local head = read_head(id)
  if not head then return '0 0 0 0' end
  local others = 1
  for _, field in ipairs({ 'state', 'unfinished', 'inputs' }) do others = others + redis.call('HEXISTS', ckpt_key(id), field) end
  return string.format('%.0f %.0f %.0f %.0f', head.updated, head.iteration, head.length, redis.call('HLEN', ckpt_key(id)) - others)
end

local function netstring(text) return #text .. ':' .. text end

-- One more entry in the story of a run: an attempt that ended without completing, or a revival. The oldest go. It is a field of the
-- run, so that it ends with it, and a run that completes at its first attempt never has one.
-- An entry is netstrings: how, numbers (life, attempt, started, ended, saved, iteration, messages, phases), worker, code, why, error
local function tell(id, counters, now, how, why, error)
  local v = redis.call('HMGET', run_key(id), 'started', 'story', 'prev')
  local worker, code = string.match(v[3] or '', '^(%S*) ?(.*)$')
  local numbers = string.format('%.0f %.0f %.0f %.0f ', counters.life, counters.attempt, tonumber(v[1] or 0) or 0, now)
  local entry = netstring(how) .. netstring(numbers .. saved_so_far(id)) .. netstring(worker) .. netstring(string.sub(code, 1, 100))
    .. netstring(why or '') .. netstring(error or '')
  local told = netstrings(v[2] or '') or {}
  told[#told + 1] = entry
  local size, from = 0, #told
  while from > 0 and #told - from < TOLD and (size == 0 or size + #told[from] <= TOLD_BYTES) do
    size = size + #told[from]
    told[from] = netstring(told[from])
    from = from - 1
  end
  redis.call('HSET', run_key(id), 'story', table.concat(told, '', from + 1))
end

-- Hints: who waits asks again by itself. A key that is broken must not stop the script, with the neighbours' endings half written.
local function wake_waiters(id)
  local clients = redis.pcall('SMEMBERS', waiters_key(id))
  for i = 1, #clients do
    local wake = wake_key(clients[i])
    redis.pcall('RPUSH', wake, id)
    redis.pcall('LTRIM', wake, -10000, -1)
    redis.call('PEXPIRE', wake, 60000)
  end
  if #clients > 0 then redis.call('UNLINK', waiters_key(id)) end
end

-- The idempotency key goes when its run's retention is over, or its own time; only if it still names this run.
local function free_once(id, run, kept)
  local ttl, key = string.match(run.once, '^(%S+) (.*)$')
  local kind = string.match(run.route, '^[^:]+:(.+)@%d+$')
  if not (key and kind) then return end -- it can't be read: what it named stays
  local once = once_key(kind, key)
  local named = redis.pcall('GET', once)
  if type(named) ~= 'string' or string.sub(named, 1, #id) ~= id then return end
  ttl = tonumber(ttl) or kept
  if ttl <= 0 then redis.call('DEL', once) else redis.call('PEXPIRE', once, int(ttl)) end
end

local function keep_checkpoint(id, status, kept)
  if status == 'completed' or kept <= 0 then return drop_checkpoint(id) end
  local head = read_head(id)
  if head then redis.call('PEXPIRE', messages_key(id, int(head.generation)), int(kept)) end
  redis.call('PEXPIRE', ckpt_key(id), int(kept))
end

-- Ends a run: status is completed, failed, cancelled or dead. The caller has let it go where it was held. Further fields of its
-- hash are written with the status: one command instead of several.
local function finish(id, run, status, now, ...)
  local key, kept = run_key(id), run.retention and tonumber(run.retention) or KEPT[status]
  -- While a client may still repeat its enqueue or its ending, the run is known.
  if kept > 0 and kept < TOMBSTONE then kept = TOMBSTONE end
  redis.call('HSET', key, 'status', status, 'ended', int(now), ...)
  write('SREM', live_key(), id)
  if not string.find(run.route, '@0', -2, true) then keep_checkpoint(id, status, kept) end
  if run.once then free_once(id, run, kept) end
  if kept <= 0 then
    -- A bare tombstone, longer than any client repeats its call.
    redis.call('HDEL', key, 'result', 'error', 'note', 'prev', 'story', 'kill', 'killed', 'waited', unpack(SPEC))
    redis.call('PEXPIRE', key, TOMBSTONE)
  else
    redis.call('PEXPIRE', key, int(kept))
    write('ZADD', ended_key(status), int(now + kept), id)
  end
  if run.waited then wake_waiters(id) end
end

-- Progress since the last strike takes strikes and back-off away; progress since the last failure takes failures away.
local function settle(counters, progress)
  if progress > counters.struck then counters.strikes, counters.backoffs = 0, 0 end
  if progress > counters.failed then counters.failures = 0 end
end

-- A strike, unless there was progress since the last one.
local function strike(counters, progress)
  if progress > counters.struck then
    counters.struck = progress
  else
    counters.strikes = counters.strikes + 1
  end
end

local function progress_of(id)
  local head = read_head(id)
  return head and head.progress or 0
end

-- The attempt has used the run's time until then. When progress was made in it is not known: at the last save, at the latest.
-- A run that was handed over does what it had not saved again, and has all its time for that: a deploy must not kill it.
local function spent_until(id, run, till, handed_over)
  local spent, head = read_spent(run.spent), not string.find(run.route, '@0', -2, true) and read_head(id)
  local took = math.max(0, till - (tonumber(run.started) or till))
  spent.used, spent.idle = spent.used + took, spent.idle + took
  if head and head.progress > spent.progress then
    spent.progress, spent.idle = head.progress, math.max(0, till - head.updated)
  end
  if handed_over then spent.idle = 0 end
  return write_spent(spent)
end

-- Growing back-off: 2 s, 4 s, … 5 min, with the caller's jitter (a number from 0 to 1).
local function back_off(counters, jitter)
  counters.backoffs = counters.backoffs + 1
  local wait = math.min(2000 * 2 ^ (counters.backoffs - 1), 300000)
  return math.floor(wait * (0.75 + 0.5 * (tonumber(jitter) or 0.5)))
end

local function grow_epoch(counters, now) counters.epoch = math.max(counters.epoch + 1, now) end

-- The same priority at another time: a score is ms - priority * 2^43, and ms is below 2^43.
local function rescore(counters, ms) counters.score = math.floor(counters.score / 8796093022208) * 8796093022208 + ms end

-- Back into a line: at once, or when it is due. It keeps its score.
local function put_back(id, counters, now, cause, due)
  local key = run_key(id)
  local route = redis.call('HGET', key, 'route')
  redis.call('HSET', key, 'counters', write_counters(counters), 'cause', cause, 'status', due and 'delayed' or 'queued')
  if due then
    into_delayed(id, due)
  elseif counters.strikes >= STRIKES - 1 then
    into_suspect(id, route, int(counters.score))
  else
    into_ready(id, route, int(counters.score))
  end
end

-- The guards of an owner's call that ends its attempt: the run with its counters, and what its delta would do. Without a run the
-- answer: fenced, gap, or what the same call was answered before.
local function owners_run(id, token, call, delta)
  local run = read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters then return nil, { 'fenced' } end
  local whose, before = standing(token, run, call)
  if whose == 'fenced' then return nil, { 'fenced' } end
  if whose == 'again' then return nil, repeated(id, run, before) end
  local plan, word
  if delta ~= '' then plan, word = plan_delta(id, delta) end
  if word == 'gap' then return nil, { 'gap' } end
  run.counters, run.plan = counters, plan
  return run
end

-- The attempt is over: what its delta brought is kept, and nobody holds the run. Answers its progress.
-- How it ended is told: released, retried, …; what it raised, in short; and what else there is to say.
local function end_attempt(id, run, token, now, how, error, why)
  if run.plan then
    apply_delta(run.plan, now)
    run.route = redis.call('HGET', run_key(id), 'route')
  end
  remember_owner(id, token)
  let_go(id, run)
  local asked = run.cancel and 'a cancel was asked for' or run.kill and 'it was killed by its critic' or nil
  tell(id, run.counters, now, how, asked or why, error)
  redis.call('HSET', run_key(id), 'spent', spent_until(id, run, now, how == 'released'))
  local progress = progress_of(id)
  settle(run.counters, progress)
  return progress
end

local function struck_out(counters) return counters.strikes >= STRIKES or counters.recoveries >= BACKSTOP end

local function why_dead(counters, what)
  if counters.strikes >= STRIKES then
    return string.format('%d strikes without progress; the last: %s', counters.strikes, what)
  end
  return string.format('%d recoveries; the last: %s', counters.recoveries, what)
end

local function bury(id, run, counters, now, what)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'reason', why_dead(counters, what))
  finish(id, run, 'dead', now)
end

local function end_cancelled(id, run, counters, now, reason)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'reason', reason)
  finish(id, run, 'cancelled', now)
end

-- The end that was asked for while the attempt went on, if any: a user's cancel, the critic's kill. No way leads back from these.
local function end_as_asked(id, run, counters, now, cancelled)
  if run.cancel then
    end_cancelled(id, run, counters, now, cancelled)
    return 'cancelled'
  end
  if run.kill then
    redis.call('HSET', run_key(id), 'counters', write_counters(counters), 'error', run.kill)
    finish(id, run, 'failed', now)
    return 'failed'
  end
end
