-- discard: remove an ended run and its checkpoint immediately.
-- Protects: a run that has not ended, or that was revived since, is never removed. A tombstone without inputs and result stays for
-- as long as a client may repeat its enqueue.
-- Role: producer
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, effects, ended, forgotten, graph, graph_index, graph_threads, groups
-- Keys: inbox, joins, limits, line, messages, once, output, parting, ready, results, routes, run, signal_keys
-- Keys: signal_operations, signals, suspect, suspect_bell, waiting
-- ARGV: id, life
--   id: id of the run
--   life: the life that ended; empty: the current one
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, groups, endings, forget
-- Answers: discarded, open, changed, missing
local run = read_run(id)
if not run then return { 'missing' } end
if not is_ended(run.status) then return { 'open', run.status } end
local counters = read_counters(run.counters)
if life ~= '' and counters and tonumber(life) ~= counters.life then return { 'changed' } end

forget(id, run)
return { 'discarded', run.status }
