-- abandon: declare a worker gone, because its process has ended, and take the first batch of its runs. A supervisor calls this.
-- Protects: an abandoned worker never joins, claims or renews again, even if it had not joined yet. A worker that has renewed its
-- lease since the caller looked is left alone.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, holders, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace
-- Keys: paced, parting, rates, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect
-- Keys: suspect_bell, turns, unreported, waiters, waiting, wake, worker, workers
-- ARGV: now, worker, batch, blame, jitter, deadline
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker
--   batch: the largest number of runs to take in this call
--   blame: the only run that gets a strike, because it blocked the event loop of the process; nobody: no run; empty: each run
--   jitter: a number from 0 to 1, which spreads delays
--   deadline: the end of the worker's lease when the caller last looked; empty: the caller saw the process end
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, limited, published, endings, unreported, calls, recover
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Unconfirmed: a run that is not taken is found again; the claim that follows waits for replicas
-- Answers: ok, renewed
--   ok: with the counts of recover_batch
--   renewed: the worker is alive: its lease has another end now
local clock = server_ms(now)
note_endings()
if deadline ~= '' and not redis.call('HGET', worker_key(worker), 'condemned') then
  local score = redis.call('ZSCORE', workers_key(), worker)
  if score and tonumber(score) ~= tonumber(deadline) then return { 'renewed' } end
end

-- The first call knows which run to blame. A later call that takes the next batch may only know that the process is gone.
redis.call('HSETNX', worker_key(worker), 'blame', blame)
local blamed = redis.call('HGET', worker_key(worker), 'blame')
condemn(worker, 'struck')
return recover_batch(worker, clock, batch, false, blamed, jitter, 'its process died')
