-- record_save: save the changes to the stand-alone checkpoint (the record) of a run that its own program executes.
-- Protects: a delta is applied only to the checkpoint for which it was made; a late save changes nothing and does not restore a
-- deleted record; a run has one owner at a time.
-- Role: worker
-- Keys: namespace, record, record_messages, record_owners, records
-- ARGV: now, owner, id, seq, acked, delta, meta, ttl
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   owner: the process that executes the run, as "<nonce>-<lease in ms>"
--   id: id of the run
--   seq: number of this save
--   acked: number of the last save that the owner knows to be stored; 0: the delta is the whole checkpoint
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
--   meta: the program's description of the run, encoded
--   ttl: ms that the record is kept
-- Uses: time, owner, record, checkpoint
-- Answers: ok, gap, old, fenced, bad, unreadable
--   ok: with new, or again if the save was stored before
--   gap: with the stored generation
--   old: with the stored seq
local clock = server_ms(now)
local record = read_named(record_key(id), 'owner', 'past', 'gone')
if not record then return { 'unreadable' } end
local before, past, gone = record.owner, record.past, tonumber(record.gone or '') or 0
local head, unreadable = read_head(id)
if unreadable then return { 'unreadable' } end
local entitled = not is_past_owner(past, owner)
if head then entitled = may_write(before, past, owner, clock) end
if not entitled then return { 'fenced' } end
local stored, number = head and head.seq or gone, tonumber(seq)
if number < stored or (number == stored and not head) then return { 'old', int(stored) } end
local plan = { id = id, again = true, head = head, generation = head and head.generation }
if not head or number > stored then
  if head and acked ~= '0' and tonumber(acked) ~= stored then return { 'gap', int(head.generation) } end
  local made, word = plan_delta(id, delta)
  if word == 'gap' then return { 'gap', int(head and head.generation or 0) } end
  if not made then return { word } end
  plan = made
end

renew_lease(owner, clock)
redis.call('ZREMRANGEBYSCORE', records_key(), '-inf', int(clock))
redis.call('ZADD', records_key(), int(clock + tonumber(ttl)), id)
if redis.call('PTTL', records_key()) < tonumber(ttl) then redis.call('PEXPIRE', records_key(), ttl) end
apply_delta(plan, clock)
redis.call('HSET', record_key(id), 'owner', owner, 'meta', meta)
redis.call('HDEL', record_key(id), 'gone')
if head and before and before ~= owner then
  redis.call('HSET', record_key(id), 'past', add_past_owner(past, before, owner))
elseif past then
  redis.call('HSET', record_key(id), 'past', past)
end
redis.call('PEXPIRE', record_key(id), ttl)
redis.call('PEXPIRE', messages_key(id, int(plan.generation)), ttl)
return { 'ok', plan.again and 'again' or 'new' }
