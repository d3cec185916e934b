-- examine_entries: tells what is wrong with members of one set or zset: entries without a run, or of a run that is elsewhere.
-- ARGV: now, place, name
-- ITEM: member
-- Flags: no-writes
-- Uses: time, run, checkpoint, examine, stray
-- Answers: runless, elsewhere, stranger, aside, absent
-- For each member an empty list, or such a word and a detail.
local clock, found = server_ms(now), {}
for i = 1, items do
  local member = item(i)
  local fault, detail = stray(place, name, member, clock)
  found[i] = fault and still_in(place, name, member) and { fault, detail } or {}
end
return found
