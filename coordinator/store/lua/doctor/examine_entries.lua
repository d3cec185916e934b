-- examine_entries: answer the faults of members of one set or sorted set: entries without a run, or entries of a run that belongs
-- in another set.
-- Role: coordinator
-- Keys: admitted, aside, deadlines, delayed, ended, holders, line, live, namespace, owned, parting, ready, run, schedule
-- Keys: schedules, starting, suspect, turns, waiting, worker, workers
-- ARGV: now, place, name
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   place: family of the key
--   name: rest of the key's name: a route, a worker, a status or a rate; empty: none
-- ITEM: member
--   member: a member of the set
-- Flags: no-writes
-- Uses: time, run, checkpoint, spend, children, examine, stray
-- Answers: runless, elsewhere, stranger, aside, absent, garbled, abandoned
-- The reply has a fault and a detail for each member, or an empty list if the member has no fault.
local clock, found = server_ms(now), {}
for i = 1, items do
  local member = item(i)
  local fault, detail = find_stray(place, name, member, clock)
  found[i] = fault and is_still_in(place, name, member) and { fault, detail } or {}
end
return found
