-- discard: an operator removes an ended run at once, with all that was kept of it.
-- Protects: a run that has not ended, or was revived meanwhile, is never removed; a bare tombstone stays for as long as a client
-- may repeat its enqueue.
-- ARGV: id, life
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, forget
-- Answers: discarded, open, changed, missing
local run = read_run(id)
if not run then return { 'missing' } end
if not KEPT[run.status] then return { 'open', run.status } end
local counters = read_counters(run.counters)
if life ~= '' and counters and tonumber(life) ~= counters.life then return { 'changed' } end

forget(id, run)
return { 'discarded', run.status }
