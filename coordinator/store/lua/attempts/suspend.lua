-- suspend: end an attempt whose handler waits for a signal, for a time or for children. The run waits without an owner until its
-- condition holds.
-- Protects: only the owner suspends a run, once; the condition is checked again, so that a signal that was sent after the handler's
-- last request for signals is not missed; a requested cancel or kill takes precedence; a run whose condition holds again without new
-- progress is delayed, so that it is not suspended and queued in an endless loop. A new ending of a child counts like progress.
-- Role: worker
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, owned, pace, paced
-- Keys: parting, ready, results, routes, run, signal_keys, signal_operations, signals, starting, suspect, suspect_bell
-- Keys: waiters, waiting, wake, worker
-- ARGV: now, id, token, condition, jitter, delta
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   condition: the condition that the run waits for, see shared/waiting.lua
--   jitter: a number from 0 to 1, which spreads delays
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, waiting
-- Moves: running -> waiting, running -> queued, running -> delayed, running -> cancelled, running -> failed
-- Answers: waiting, ok, delayed, cancelled, failed, fenced, gap, bad
--   ok: the condition holds already, and the run is queued
--   bad: the condition can't be read
local clock = server_ms(now)
local parsed = read_condition(condition)
if not parsed then return { 'bad' } end
local run, answer = read_owned_run(id, token, 'suspend', delta)
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, 'suspended'), run.counters
advance_epoch(counters, clock)
local ended = end_if_requested(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'suspend', ended)
  return { ended }
end
-- Return the base of the step and the number of its ended children, as text; empty if the run does not wait for children.
local function describe_endings()
  for base in pairs(parsed.steps) do
    local _, ended = read_join(id, base)
    return base .. ' ' .. int(ended or 0)
  end
  return ''
end

local reason = find_reason(id, parsed, clock)
if reason then
  local endings = describe_endings()
  local news = endings ~= '' and redis.call('HGET', run_key(id), 'rejoined') ~= endings
  if news then redis.call('HSET', run_key(id), 'rejoined', endings) end
  local rewoken = tonumber(redis.call('HGET', run_key(id), 'rewoken') or -1)
  redis.call('HSET', run_key(id), 'rewoken', int(progress))
  if progress > rewoken or news then
    remember_call(id, token, 'suspend', 'ok')
    requeue(id, counters, 'wake ' .. reason, nil)
    return { 'ok' }
  end
  remember_call(id, token, 'suspend', 'delayed')
  requeue(id, counters, 'wake ' .. reason, clock + next_backoff(counters, jitter))
  return { 'delayed' }
end
remember_call(id, token, 'suspend', 'waiting')
redis.call('HSET', run_key(id), 'status', WAITING, 'counters', write_counters(counters), 'wait', int(clock) .. ' ' .. condition)
add_to_waiting(id, parsed, clock)
if run.beside then
  local group = read_fields(run_key(id), 'group')
  if group then leave_group(id, group, clock) end
end
return { 'waiting' }
