-- recover: take a batch of runs from a worker whose lease has expired.
-- Protects: no run is taken from a worker whose lease holds, or while recovery is paused; the old owner of a recovered run can't
-- write the run any more.
-- Role: coordinator
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, holders, inbox, joins, limits, line, live, lock, messages, namespace, once, output, owned
-- Keys: pace, paced, parting, rates, ready, results, routes, run, signal_keys, signal_operations, signals, starting
-- Keys: suspect, suspect_bell, turns, unreported, waiters, waiting, wake, watch, worker, workers
-- ARGV: now, lock, token, worker, tick, batch, jitter
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   lock: name of the lock
--   token: the token of the lock; a caller that does not hold the lock takes no run
--   worker: id of the worker
--   tick: ms between two checks of the leases
--   batch: the largest number of runs to take in this call
--   jitter: a number from 0 to 1, which spreads delays
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, limited, published, endings, unreported, judge, calls, recover
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Unconfirmed: a run that is not taken is found again; the claim that follows waits for replicas
-- Answers: ok, unlocked, gone, alive, held
--   ok: with the counts of recover_batch
--   unlocked: another coordinator has the lock
--   held: recovery is paused, and the pause protects this worker
local clock = server_ms(now)
note_endings()
if redis.call('GET', lock_key(lock)) ~= token then return { 'unlocked' } end
local hold_until = judge_leases(clock, tonumber(tick))
local deadline = redis.call('ZSCORE', workers_key(), worker)
if not deadline then return { 'gone' } end
local condemned, blame = read_fields(worker_key(worker), 'condemned', 'blame')
if not condemned then
  if tonumber(deadline) > clock then return { 'alive' } end
  if is_spared(worker, deadline, clock, hold_until) then return { 'held' } end
  -- The worker is excused: its lease expired in the outage, so its runs get no strike. One tick is added, because a heartbeat that
  -- was on its way when the server stopped is carried out just after the pause began.
  condemned = tonumber(deadline) < hold_until + tonumber(tick) and 'excused' or 'struck'
end

condemn(worker, condemned)
-- A worker that was abandoned has the field blame, even if it blames no run.
local why = blame and 'its process died' or condemned == 'excused' and 'its lease ran out in an outage' or 'its lease ran out'
return recover_batch(worker, clock, batch, condemned == 'excused', blame or '', jitter, why)
