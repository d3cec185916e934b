-- cancel: end a waiting run immediately, or ask the owner of a running one to stop it.
-- Protects: a cancel that is sent twice or late does nothing to another life of the run.
-- Role: producer
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, pace, paced, parting
-- Keys: ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiters
-- Keys: waiting, wake, worker
-- ARGV: now, id, operation, life, grace
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   operation: id of this cancel; a repeated call has the same
--   life: the life to cancel; empty: the current one
--   grace: ms that the handler has before the cancel is forced
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: queued -> cancelled, delayed -> cancelled, waiting -> cancelled
-- Answers: cancelled, cancelling, ended, changed, missing
--   changed: the run has another life
local clock = server_ms(now)
local run = read_run(id)
local counters = run and read_counters(run.counters)
if not counters then return { 'missing' } end
local ended = is_ended(run.status)
if redis.call('HGET', run_key(id), 'operation') == operation then
  redis.call('HSET', run_key(id), 'operation', operation)
  if run.status == RUNNING and run.cancel then return { 'cancelling' } end
  if run.status == CANCELLED then return { 'cancelled' } end
  return ended and { 'ended', run.status } or { 'changed' }
end
if life ~= '' and tonumber(life) ~= counters.life then return { 'changed' } end
if ended then return { 'ended', run.status } end

redis.call('HSET', run_key(id), 'operation', operation)
if run.status == RUNNING then
  local worker = worker_of(run.token)
  redis.call('HSET', run_key(id), 'cancel', int(clock))
  redis.pcall('HSET', worker_key(worker), 'cancel:' .. id, int(clock))
  -- LT: a second request does not give the handler more time.
  redis.pcall('ZADD', deadlines_key(), 'LT', int(clock + tonumber(grace)), 'cancel:' .. id)
  notify(worker, 'cancel ' .. id)
  ring(coordinator_bell_key())
  return { 'cancelling' }
end
leave_queues(id, run.route)
if run.wait then redis.call('HDEL', run_key(id), 'wait') end
redis.pcall('ZREM', deadlines_key(), 'expire:' .. id)
end_cancelled(id, run, counters, clock, 'cancelled')
return { 'cancelled' }
