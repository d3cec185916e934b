-- record_claim: takes an interrupted run over, if it is still as it was seen.
-- Protects: of two that start at once one gets it; a repetition of the same claim gets the same answer.
-- ARGV: now, owner, id, seen, nonce
-- Flags: allow-oom
-- Uses: time, run, owner
-- Answers: ok, held, missing
local clock = server_ms(now)
local record = fields(record_key(id), 'owner', 'past', 'claim', 'head')
if not record or not record[4] then return { 'missing' } end
local before = record[1] or ''
local again = before == owner and record[3] == nonce
if not again and (before ~= seen or lives(before, clock)) then return { 'held' } end

renew(owner, clock)
local past = again and record[2] or taken_from(record[2], before, owner)
redis.call('HSET', record_key(id), 'owner', owner, 'past', past, 'claim', nonce)
return { 'ok' }
