-- release: save the newest changes of a run that its worker releases, and requeue the run. The run keeps its score.
-- Protects: only the owner requeues a run, once; a release by a stopping worker neither delays the run nor counts as a strike; any
-- other release delays the run by a back-off, and is a strike if the run made no progress; a requested cancel or kill takes
-- precedence.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced
-- Keys: parting, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell
-- Keys: waiters, waiting, wake, worker
-- ARGV: now, id, token, mode, jitter, delta
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   mode: stopping (the worker shuts down, or does not hold the run that it owns) or unasked (any other reason)
--   jitter: a number from 0 to 1, which spreads delays
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Answers: ok, delayed, dead, cancelled, failed, fenced, gap
local clock = server_ms(now)
local run, answer = read_owned_run(id, token, 'release', delta)
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, mode == 'stopping' and 'released' or 'stopped'), run.counters
advance_epoch(counters, clock)
local ended = end_if_requested(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'release', ended)
  return { ended }
end
if mode == 'stopping' then
  counters.releases = counters.releases + 1
  remember_call(id, token, 'release', 'ok')
  requeue(id, counters, 'release', nil)
  return { 'ok' }
end
local new_endings = note_new_endings(id, run)
add_strike(counters, progress, new_endings)
counters.recoveries = counters.recoveries + 1
if is_struck_out(counters, count_loss(id, progress, new_endings)) then
  remember_call(id, token, 'release', 'dead')
  end_dead(id, run, counters, clock, 'its handler raised the stop exception without a stop request')
  return { 'dead' }
end
remember_call(id, token, 'release', 'delayed')
requeue(id, counters, 'release', clock + next_backoff(counters, jitter))
return { 'delayed' }
