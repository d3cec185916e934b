-- listen: prepare to read the output of a run. From now on the script that ends the run writes an end to the output, even if the
-- handler has emitted nothing.
-- Protects: the check and the mark are one step, so that a reader misses no end.
-- Role: producer
-- Keys: output, run
-- ARGV: id
--   id: id of the run
-- Flags: allow-oom
-- Unconfirmed: a reader that gets nothing asks again after a minute
-- Answers: open, ended, missing
--   open: with the status, and the id of the newest entry of the output; 0-0 if there is none
--   ended: with the status
local beside, status = read_fields(run_key(id), 'beside', 'status')
if not status then return { 'missing' } end
if is_ended(status) then return { 'ended', status } end

if not string.find(beside or '', 'o', 1, true) then redis.call('HSET', run_key(id), 'beside', (beside or '') .. 'o') end
local newest = redis.pcall('XREVRANGE', output_key(id), '+', '-', 'COUNT', 1)
return { 'open', status, newest[1] and newest[1][1] or '0-0' }
