-- reject: end an attempt that failed before the handler's first line. The run is delayed and gets a new score.
-- Protects: only the owner requeues a run, once. The attempt counts as a strike only if a handler of this kind has started in the
-- worker's process before.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced
-- Keys: parting, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell
-- Keys: waiters, waiting, wake, worker
-- ARGV: now, id, token, proven, jitter, error, brief
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   proven: 1 if a handler of this kind has started in the worker's process before
--   jitter: a number from 0 to 1, which spreads delays
--   error: the error that the handler raised, encoded
--   brief: the same error without its traceback, for the story
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Answers: delayed, dead, cancelled, failed, fenced
local clock = server_ms(now)
local run, answer = read_owned_run(id, token, 'reject', '')
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, 'rejected', brief), run.counters
advance_epoch(counters, clock)
redis.call('HSET', run_key(id), 'error', error)
local ended = end_if_requested(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'reject', ended)
  return { ended }
end
if proven == '1' then add_strike(counters, progress) end
-- Only strikes can end the run here, and a strike needs proof that handlers of this kind can start. Without that proof the
-- deployed code may be broken, and a bad deploy must not end runs, no matter how often they are rejected.
if is_struck_out(counters, 0) then
  remember_call(id, token, 'reject', 'dead')
  end_dead(id, run, counters, clock, 'its handler could not be started')
  return { 'dead' }
end
remember_call(id, token, 'reject', 'delayed')
local due = clock + next_backoff(counters, jitter)
rescore(counters, due)
-- The handler has not run, so the run keeps the cause of its resumption.
requeue(id, counters, redis.call('HGET', run_key(id), 'cause') or '', due)
return { 'delayed' }
