-- cancel: ends a run that waits, at once; asks the owner of a running one to stop.
-- Protects: a cancel that is sent twice or late does nothing to another life of the run.
-- ARGV: now, id, operation, life, grace
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: queued -> cancelled, delayed -> cancelled, waiting -> cancelled
-- Answers: cancelled, cancelling, ended, changed, missing
local clock = server_ms(now)
local run = read_run(id)
local counters = run and read_counters(run.counters)
if not counters then return { 'missing' } end
local ended = run.status == 'completed' or run.status == 'failed' or run.status == 'dead' or run.status == 'cancelled'
if redis.call('HGET', run_key(id), 'operation') == operation then
  redis.call('HSET', run_key(id), 'operation', operation)
  if run.status == 'running' and run.cancel then return { 'cancelling' } end
  if run.status == 'cancelled' then return { 'cancelled' } end
  return ended and { 'ended', run.status } or { 'changed' }
end
if life ~= '' and tonumber(life) ~= counters.life then return { 'changed' } end
if ended then return { 'ended', run.status } end

redis.call('HSET', run_key(id), 'operation', operation)
if run.status == 'running' then
  local worker = worker_of(run.token)
  redis.call('HSET', run_key(id), 'cancel', int(clock))
  redis.call('HSET', worker_key(worker), 'cancel:' .. id, int(clock))
  redis.call('ZADD', deadlines_key(), 'LT', int(clock + tonumber(grace)), 'cancel:' .. id) -- asking again gives no more time
  redis.call('RPUSH', inbox_key(worker), 'cancel ' .. id)
  redis.call('LTRIM', inbox_key(worker), -1000, -1)
  redis.call('PEXPIRE', inbox_key(worker), 60000)
  ring(coordinator_bell_key())
  return { 'cancelling' }
end
redis.call('ZREM', ready_key(run.route), id)
redis.call('ZREM', suspect_key(run.route), id)
redis.call('ZREM', delayed_key(), id)
redis.call('ZREM', deadlines_key(), 'expire:' .. id)
end_cancelled(id, run, counters, clock, 'cancelled')
return { 'cancelled' }
