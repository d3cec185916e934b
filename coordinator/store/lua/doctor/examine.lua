-- examine: answer what is wrong with runs. A run that does not exist has no faults.
-- Protects: all places are read in one step, so that a run that moves between two places is never seen in none or in both.
-- Role: coordinator
-- Keys: ckpt, deadlines, delayed, ended, live, owned, ready, routes, run, suspect, workers
-- ITEM: id
--   id: id of the run
-- Flags: no-writes
-- Uses: run, examine
-- Answers: unreadable, lineless, twice, unrouted, tokenless, ownerless, unowned, unlive, held, timeless, mortal, live, endless
-- Answers: unlisted, mistaken
-- For each run a list of faults, each followed by a detail. coordinator/doctor/findings.py explains the faults.
local found = {}
for i = 1, items do found[i] = find_faults((item(i))) or {} end
return found
