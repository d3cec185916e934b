-- retry: delay a run whose handler raised an error, if the retry policy allows another attempt. The run gets a new score.
-- Protects: only the owner requeues a run, once; a requested cancel or kill takes precedence. A retry from the start drops the
-- checkpoint. In that mode progress does not reset the count of failures, because every attempt makes the same progress again.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced
-- Keys: parting, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell
-- Keys: waiters, waiting, wake, worker
-- ARGV: now, id, token, delay, error, brief, from_start, asked, delta
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   delay: ms until the next attempt
--   error: the error that the handler raised, encoded
--   brief: the same error without its traceback, for the story
--   from_start: 1 if the next attempt starts without the checkpoint
--   asked: 1 if the handler asked for the delay (RetryLater), which does not count as a failure
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: running -> delayed, running -> cancelled, running -> failed
-- Answers: ok, cancelled, failed, fenced, gap
local clock = server_ms(now)
local run, answer = read_owned_run(id, token, 'retry', delta)
if not run then return answer end

local counters, failures = run.counters, run.counters.failures
local again = from_start == '1'
local progress = end_attempt(id, run, token, clock, 'retried', brief, again and 'from the start')
advance_epoch(counters, clock)
if again then counters.failures, progress = failures, FAR_FUTURE end -- More than any progress, so that none resets the failures.
if asked ~= '1' then counters.failures, counters.failed = counters.failures + 1, progress end
redis.call('HSET', run_key(id), 'error', error)
local ended = end_if_requested(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'retry', ended)
  return { ended }
end
remember_call(id, token, 'retry', 'ok')
if again then
  drop_checkpoint(id)
  redis.call('HDEL', run_key(id), 'rewoken') -- Progress begins at 0 again.
  if run.beside and string.find(run.beside, 'r', 1, true) then
    drop_all_steps(id)
    redis.call('UNLINK', joins_key(id), results_key(id))
  end
  if run.beside and string.find(run.beside, 'g', 1, true) then keep_graphs(id, 0) end
  local spent = read_spent(redis.call('HGET', run_key(id), 'spent'))
  spent.progress, spent.idle = 0, 0
  local asked = redis.call('HGET', run_key(id), 'asked') or '0'
  redis.call('HSET', run_key(id), 'route', (string.gsub(run.route, '@%d+$', '@' .. asked)), 'spent', write_spent(spent))
end
local due = clock + tonumber(delay)
rescore(counters, due)
requeue(id, counters, 'retry', due)
return { 'ok' }
