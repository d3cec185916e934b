-- examine: tells what is wrong with runs; a run that is gone has nothing wrong with it.
-- Protects: a look is one moment, so that a run on its way from one place to another is never seen in none or in both.
-- ITEM: id
-- Flags: no-writes
-- Uses: run, examine
-- Answers: unreadable, lineless, twice, unrouted, tokenless, ownerless, unowned, unlive, held, timeless, mortal, live, endless
-- Answers: unlisted, mistaken
-- For each run a list of such words, each followed by a detail.
local found = {}
for i = 1, items do found[i] = faults((item(i))) or {} end
return found
