-- examine: answer the faults of runs. A run that does not exist has no faults.
-- Protects: all keys that list runs are read in one step, so that a run that moves from one to another is seen in exactly one.
-- Role: coordinator
-- Keys: admitted, ckpt, deadlines, delayed, ended, groups, joins, line, live, owned, ready, results, routes, run, signals
-- Keys: suspect, waiting, workers
-- ITEM: id
--   id: id of the run
-- Flags: no-writes
-- Uses: run, checkpoint, spend, children, waiting, examine
-- Answers: unreadable, lineless, twice, unrouted, tokenless, ownerless, unowned, unlive, held, timeless, mortal, live, endless
-- Answers: unlisted, mistaken, aimless, unwoken, mistimed, unswept, unadmitted, admitted, misspent, unnoted, untold
-- The reply has a list of faults for each run, each fault followed by a detail. coordinator/doctor/findings.py explains the faults.
local found = {}
for i = 1, items do found[i] = find_faults((item(i))) or {} end
return found
