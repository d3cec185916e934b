-- examine_keys: answer what is wrong with keys of one family (of runs, workers or schedules): leaked, of another type, without
-- an end, or watched by no coordinator.
-- Role: coordinator
-- Keys: ckpt, messages, once, run, schedule, schedules, worker, workers
-- ARGV: family, expected
--   family: ckpt, messages, once, worker or schedule
--   expected: the type that its keys should have
-- ITEM: name
--   name: rest of the key's name
-- Flags: no-writes
-- Uses: time, run, checkpoint, examine, stray
-- Answers: leaked, mistaken, endless, mortal, unwatched
-- For each key a fault and an empty detail, or an empty list.
local found = {}
for i = 1, items do
  local fault = find_leak(family, (item(i)), expected)
  found[i] = fault and { fault, '' } or {}
end
return found
