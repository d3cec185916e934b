-- examine_keys: answer the faults of keys of one family (of runs, workers or schedules): a key that was left over, that has another
-- type, that lacks a TTL, that has a TTL although its run has not ended, that its run does not know, or that no coordinator watches.
-- Role: coordinator
-- Keys: ckpt, effects, graph, graph_index, graph_threads, joins, messages, once, output, results, run, schedule
-- Keys: schedules, signal_keys, signal_operations, signals, worker, workers
-- ARGV: family, expected
--   family: ckpt, messages, signals, signal-keys, signal-operations, joins, results, output, effects, graph, graph-index,
--     graph-threads, once, worker or schedule
--   expected: the type that the keys of the family should have
-- ITEM: name
--   name: rest of the key's name
-- Flags: no-writes
-- Uses: time, run, checkpoint, examine, stray
-- Answers: leaked, mistaken, endless, mortal, unwatched, unnoted
-- The reply has a fault and an empty detail for each key, or an empty list if the key has no fault.
local found = {}
for i = 1, items do
  local fault = find_leak(family, (item(i)), expected)
  found[i] = fault and { fault, '' } or {}
end
return found
