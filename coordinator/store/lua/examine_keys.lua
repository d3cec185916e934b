-- examine_keys: tells what is wrong with keys of one family (of runs, workers, schedules): leaked, of another type,
-- without an end, or looked at by nobody.
-- ARGV: family, expected
-- ITEM: name
-- Flags: no-writes
-- Uses: time, run, checkpoint, examine, stray
-- Answers: leaked, mistaken, endless, mortal, unwatched
-- For each key an empty list, or such a word and a detail.
local found = {}
for i = 1, items do
  local fault = leaked(family, (item(i)), expected)
  found[i] = fault and { fault, '' } or {}
end
return found
