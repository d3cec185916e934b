-- record_claim: take over an interrupted run, if its record is still as the caller has seen it.
-- Protects: if two processes claim the run at the same time, one of them gets it; a repeated claim gets the same answer.
-- Role: worker
-- Keys: namespace, record, record_owners
-- ARGV: now, owner, id, seen, nonce
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   owner: the process that executes the run, as "<nonce>-<lease in ms>"
--   id: id of the run
--   seen: the owner that the record had
--   nonce: the nonce of this claim; a repeated call has the same
-- Flags: allow-oom
-- Uses: time, owner
-- Answers: ok, held, missing
--   held: another process has the run
local clock = server_ms(now)
local before, past, claim, head = read_fields(record_key(id), 'owner', 'past', 'claim', 'head')
if not head then return { 'missing' } end
before = before or ''
local again = before == owner and claim == nonce
if not again and (before ~= seen or check_lease(before, clock)) then return { 'held' } end

renew_lease(owner, clock)
if not (again and past) then past = add_past_owner(past, before, owner) end
redis.call('HSET', record_key(id), 'owner', owner, 'past', past, 'claim', nonce)
return { 'ok' }
