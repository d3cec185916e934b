-- mend_run: puts a run into the one place that its status names, if what was seen of it is still so.
-- Protects: whoever held a run that is taken away can no longer write it; a run that waits is never lost: one that can't be read
-- is ended as dead, with a sentence, and can be revived; where nothing of it can be used it is kept aside for a week.
-- ARGV: now, id, fault, jitter
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, recover, examine, stray
-- Answers: mended, kept, changed, blocked
-- A repair is no move of a life: it makes true what the status says, or does what recover would have done.
local clock = server_ms(now)
local found, run = faults(id)
local seen = false
for i = 1, found and #found or 0, 2 do seen = seen or found[i] == fault end
if not seen then return { 'changed' } end

-- What is written below: if one is of another type it has to be mended first.
local touched = {
  [live_key()] = 'set', [routes_key()] = 'set', [waiters_key(id)] = 'set', [delayed_key()] = 'zset', [deadlines_key()] = 'zset',
  [ckpt_key(id)] = 'hash', [coordinator_bell_key()] = 'list',
}
for status in pairs(OVER) do touched[ended_key(status)] = 'zset' end
if run.routed then
  touched[ready_key(run.route)], touched[suspect_key(run.route)] = 'zset', 'zset'
  touched[bell_key(run.route)], touched[suspect_bell_key(run.route)] = 'list', 'list'
end
if run.worker then touched[owned_key(run.worker)], touched[worker_key(run.worker)] = 'set', 'hash' end
for key, expected in pairs(touched) do
  local is = type_of(key)
  if is ~= 'none' and is ~= expected then return { 'blocked' } end
end
if run.once and not string.find(run.once, '^%S+ ') then run.once = false end
run.waited = true -- one that is damaged may have lost the word

local function leave_lines(home)
  if home ~= 'ready' and run.routed then redis.call('ZREM', ready_key(run.route), id) end
  if home ~= 'suspect' and run.routed then redis.call('ZREM', suspect_key(run.route), id) end
  if home ~= 'delayed' then redis.call('ZREM', delayed_key(), id) end
end

-- Nobody holds it from here on.
local function take_away()
  if run.worker then let_go(id, run) else redis.call('HDEL', run_key(id), 'token') end
end

local function fence(counters)
  take_away()
  grow_epoch(counters, clock)
  redis.call('HSET', run_key(id), 'counters', write_counters(counters))
end

-- One that can't be read: dead, with what is known of it; or kept aside, where that is too little.
local function give_up()
  leave_lines('')
  take_away()
  redis.call('ZREM', deadlines_key(), 'expire:' .. id, 'cancel:' .. id)
  local readable = run.routed and (run.spec or OVER[run.status])
  if not readable then
    redis.call('SREM', live_key(), id)
    redis.call('UNLINK', set_aside_key('run:' .. id)) -- else RENAME would free it here and now, however large it is
    redis.call('RENAME', run_key(id), set_aside_key('run:' .. id))
    redis.call('PEXPIRE', set_aside_key('run:' .. id), WEEK)
    return { 'kept' }
  end
  if not run.counted then
    local epoch = run.token and tonumber(string.match(run.token, '^(%d+)%-')) or 0
    redis.call('HSET', run_key(id), 'counters',
      string.format('1 0 %.0f 0 0 0 0 0 0 0 %.0f %.0f', math.max(epoch + 1, clock), clock, clock))
  end
  if not OVER[run.status] then
    -- what was there instead may be any bytes, and a reason is text
    local instead = string.gsub(string.sub(unreadable(run), 1, 100), '[^ -~]', function(c) return string.format('\\x%02x', string.byte(c)) end)
    redis.call('HSET', run_key(id), 'reason', 'it could not be read: ' .. instead)
    finish(id, run, 'dead', clock)
  end
  return { 'mended' }
end

local function settle_queued()
  local counters = run.counted
  if run.token then fence(counters) end
  local home = counters.strikes >= SUSPECT_FROM and 'suspect' or 'ready'
  leave_lines(home)
  if home == 'suspect' then
    into_suspect(id, run.route, int(counters.score))
  else
    into_ready(id, run.route, int(counters.score))
  end
end

-- When it was due is in its score, where an enqueue or a retry put it; a back-off that is lost is over.
local function settle_delayed()
  if run.token then fence(run.counted) end
  leave_lines('delayed')
  if not scored(delayed_key(), id) then into_delayed(id, math.max(clock, run.counted.score % 8796093022208)) end
end

local function settle_running()
  leave_lines('')
  if run.worker and scored(workers_key(), run.worker) then
    redis.call('SADD', owned_key(run.worker), id)
    redis.call('SADD', live_key(), id)
    return
  end
  if run.worker then
    recover_one(id, false, lost_with(run.worker, clock, jitter, 'its worker had no lease'))
    redis.call('SREM', owned_key(run.worker), id)
    return
  end
  fence(run.counted)
  if run.cancel then redis.call('ZREM', deadlines_key(), 'cancel:' .. id) end
  if not end_as_asked(id, run, run.counted, clock, 'cancelled while its worker was lost') then
    put_back(id, run.counted, clock, 'recover', nil)
  end
end

local function settle_ended()
  leave_lines('')
  if run.token then take_away() end
  redis.call('SREM', live_key(), id)
  local ttl = redis.call('PTTL', run_key(id))
  if ttl < 0 then
    finish(id, run, run.status, clock)
    if run.ended then redis.call('HSET', run_key(id), 'ended', run.ended) end
    return
  end
  if redis.call('PTTL', ckpt_key(id)) == -1 then keep_checkpoint(id, run.status, ttl) end
  if run.spec then redis.call('ZADD', ended_key(run.status), 'NX', int(clock + ttl), id) end
end

local function settle_times()
  redis.call('PERSIST', run_key(id))
  redis.call('PERSIST', ckpt_key(id))
  if run.status == 'running' and run.cancel then
    redis.call('ZADD', deadlines_key(), 'NX', int(clock), 'cancel:' .. id)
    ring(coordinator_bell_key())
  elseif run.status ~= 'running' and run.expires then
    redis.call('ZADD', deadlines_key(), 'NX', int(tonumber(run.expires) or clock), 'expire:' .. id)
    ring(coordinator_bell_key())
  end
end

if fault == 'unreadable' then return give_up() end
if OVER[run.status] then
  settle_ended()
  return { 'mended' }
end
settle_times()
if run.status == 'queued' then
  settle_queued()
elseif run.status == 'delayed' then
  settle_delayed()
elseif run.status == 'running' then
  settle_running()
else
  fence(run.counted)
end
return { 'mended' }
