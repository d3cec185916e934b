-- record_delete: delete a record, because its run has ended. A tombstone stays for a while.
-- Protects: a process that lost the run does not delete the record that its new owner saved; a late save finds the tombstone and
-- changes nothing.
-- Role: worker
-- Keys: namespace, record, record_messages, record_owners, records
-- ARGV: now, owner, id, seq
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   owner: the process that executes the run, as "<nonce>-<lease in ms>"
--   id: id of the run
--   seq: number of the owner's last save
-- Flags: allow-oom
-- Uses: time, owner, record, checkpoint
-- Answers: ok, fenced
local clock = server_ms(now)
local before, past, gone = read_fields(record_key(id), 'owner', 'past', 'gone')
gone = tonumber(gone or '') or 0
local head = read_head(id)
if head and not may_write(before, past, owner, clock) then return { 'fenced' } end

local last = math.max(tonumber(seq), gone, head and head.seq or 0)
if head and before and before ~= owner then past = add_past_owner(past, before, owner) end
redis.call('ZREM', records_key(), id)
drop_checkpoint(id)
redis.call('HSET', record_key(id), 'gone', int(last), 'past', past or ' ')
redis.call('PEXPIRE', record_key(id), TOMBSTONE_MS)
return { 'ok' }
