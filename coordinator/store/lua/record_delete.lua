-- record_delete: forgets a record, because its run has ended. A tombstone stays for a while.
-- Protects: whoever lost the run does not delete what its new owner saved; a save that comes late finds the tombstone.
-- ARGV: now, owner, id, seq
-- Flags: allow-oom
-- Uses: time, run, owner, record, checkpoint
-- Answers: ok, fenced
local clock = server_ms(now)
local record = fields(record_key(id), 'owner', 'past', 'gone')
local before, past, gone = false, false, 0
if record then before, past, gone = record[1], record[2], tonumber(record[3] or '') or 0 end
local head = read_head(id)
if head and not may_write(before, past, owner, clock) then return { 'fenced' } end

local last = math.max(tonumber(seq), gone, head and head.seq or 0)
if head and before and before ~= owner then past = taken_from(past, before, owner) end
redis.call('ZREM', records_key(), id)
drop_checkpoint(id)
redis.call('HSET', record_key(id), 'gone', int(last), 'past', past or ' ')
redis.call('PEXPIRE', record_key(id), 60000)
return { 'ok' }
