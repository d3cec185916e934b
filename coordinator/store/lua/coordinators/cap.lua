-- cap: remove the ended runs of a status that exceed the number to keep. Runs whose retention ends first are removed first.
-- Protects: a run that was revived after it ended is not deleted; only its entry in the list of ended runs is removed.
-- Role: coordinator
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, effects, ended, forgotten, graph, graph_index, graph_threads
-- Keys: groups, inbox, joins, limits, line, messages, once, output, pace, paced, parting, ready, results, routes, run
-- Keys: signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiting
-- ARGV: status, keep, batch
--   status: completed, failed, cancelled or dead
--   keep: number of ended runs to keep
--   batch: the largest number of runs to remove in this call
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, forget
-- Unconfirmed: the runs that are left are removed at the next tick
-- Answers: ok
--   ok: with the number of runs that were removed
local listed = redis.pcall('ZCARD', ended_key(status))
if type(listed) ~= 'number' then return { 'ok', 0 } end
local beyond = math.min(listed - tonumber(keep), tonumber(batch))
if beyond <= 0 then return { 'ok', 0 } end

local ids = redis.call('ZRANGE', ended_key(status), 0, beyond - 1)
for i = 1, #ids do
  local run = read_run(ids[i])
  if run and run.status == status then forget(ids[i], run) end
  redis.call('ZREM', ended_key(status), ids[i])
end
return { 'ok', #ids }
