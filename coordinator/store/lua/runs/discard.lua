-- discard: remove an ended run and its checkpoint immediately.
-- Protects: a run that has not ended, or that was revived since, is never removed. A tombstone without inputs and result stays for
-- as long as a client may repeat its enqueue.
-- Role: producer
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, effects, ended, forgotten, graph, graph_index, graph_threads
-- Keys: groups, inbox, joins, limits, line, messages, once, output, pace, paced, parting, ready, results, routes, run
-- Keys: signal_keys, signal_operations, signals, starting, suspect, suspect_bell, waiting
-- ARGV: id, life
--   id: id of the run
--   life: the life that ended; empty: the current one
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, forget
-- Answers: discarded, open, changed, missing
local run = read_run(id)
if not run then return { 'missing' } end
if not is_ended(run.status) then return { 'open', run.status } end
local counters = read_counters(run.counters)
if life ~= '' and counters and tonumber(life) ~= counters.life then return { 'changed' } end

forget(id, run)
return { 'discarded', run.status }
