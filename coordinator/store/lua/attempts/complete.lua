-- complete: end runs whose handlers returned.
-- Protects: only the owner ends a run, once; a repeated call gets the same answer; a run whose cancel was requested does not
-- complete.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, effects, ended, graph, graph_index, graph_threads
-- Keys: groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced, parting, ready
-- Keys: results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiters, waiting
-- Keys: wake, worker
-- ARGV: now
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
-- EACH: id, token, result, rest
--   id: id of the run
--   token: the token of the run's owner
--   result: encoded; empty for None
--   rest: empty for most runs; else k or -, and the events that are not stored yet (see shared/output.lua; empty: none). With k the
--     checkpoint is kept as long as the run.
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: running -> completed
-- Answers: ok, fenced, requested
--   requested: a cancel was requested, so the run does not complete; its owner then releases it, which ends it as cancelled
local clock = server_ms(now)
local answers = {}
begin_batch()
for i = 1, items do
  local id, token, result, rest = item(i)
  -- Like read_run, without the fields that no completion needs: this is the busiest script.
  local run = read_named(run_key(id), 'status', 'token', 'last', 'route', 'retention', 'once', 'cancel', 'waited', 'beside')
  local readable = run and run.status and run.route and (run.token or run.status ~= RUNNING)
  local caller = readable and check_caller(token, run, 'complete') or 'fenced'
  if rest ~= '' and caller == 'owner' then
    run.keeps = string.sub(rest, 1, 1) == 'k'
    if #rest > 1 and write_output(id, token, string.sub(rest, 2), clock) then run.beside = (run.beside or '') .. 'o' end
  end
  if caller == 'owner' and run.cancel then
    caller = 'requested'
  elseif caller == 'owner' then
    remove_owner(id, run)
    local last = token .. ' complete ok'
    if result == '' then
      end_run(id, run, COMPLETED, clock, 'last', last)
    else
      end_run(id, run, COMPLETED, clock, 'last', last, 'result', result)
    end
  elseif caller == 'repeated' then
    repeat_answer(id, run, 'ok')
  end
  answers[i] = (caller == 'fenced' or caller == 'requested') and caller or 'ok'
end
return flush_batch() or answers
