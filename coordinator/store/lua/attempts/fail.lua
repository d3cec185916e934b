-- fail: end a run whose handler raised an error. Its checkpoint is kept for the retention.
-- Protects: only the owner ends a run, once; a repeated call gets the same answer; a requested cancel takes precedence.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, effects, ended, graph, graph_index, graph_threads
-- Keys: groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced, parting, ready
-- Keys: results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiters, waiting
-- Keys: wake, worker
-- ARGV: now, id, token, error, brief, delta
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   error: the error that the handler raised, encoded
--   brief: the same error without its traceback, for the story
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: running -> failed, running -> cancelled
-- Answers: ok, cancelled, fenced, gap
local clock = server_ms(now)
local run, answer = read_owned_run(id, token, 'fail', delta)
if not run then return answer end

end_attempt(id, run, token, clock, 'failed', brief)
local counters = run.counters
counters.failures = counters.failures + 1
redis.call('HSET', run_key(id), 'error', error, 'counters', write_counters(counters))
if run.cancel then
  remember_call(id, token, 'fail', CANCELLED)
  end_cancelled(id, run, counters, clock, 'cancelled')
  return { CANCELLED }
end
remember_call(id, token, 'fail', 'ok')
end_run(id, run, FAILED, clock)
return { 'ok' }
