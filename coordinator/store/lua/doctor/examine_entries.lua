-- examine_entries: answer what is wrong with members of one set or sorted set: entries without a run, or of a run that is
-- elsewhere.
-- Role: coordinator
-- Keys: aside, deadlines, delayed, ended, live, namespace, owned, ready, run, schedule, schedules, suspect, worker, workers
-- ARGV: now, place, name
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   place: family of the key
--   name: rest of the key's name: a route, a worker or a status; empty: none
-- ITEM: member
--   member: of the set
-- Flags: no-writes
-- Uses: time, run, checkpoint, examine, stray
-- Answers: runless, elsewhere, stranger, aside, absent
-- For each member a fault and a detail, or an empty list.
local clock, found = server_ms(now), {}
for i = 1, items do
  local member = item(i)
  local fault, detail = find_stray(place, name, member, clock)
  found[i] = fault and is_still_in(place, name, member) and { fault, detail } or {}
end
return found
