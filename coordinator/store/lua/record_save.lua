-- record_save: keeps what is new of a run that its own program executes.
-- Protects: a delta is only applied to what it was made for; a late save changes nothing and brings nothing deleted back;
-- one owner at a time.
-- ARGV: now, owner, id, seq, acked, delta, meta, ttl
-- Uses: time, run, owner, record, checkpoint
-- Answers: ok, gap, old, fenced, bad, unreadable
-- gap and old go with what is stored (the generation, the seq), ok with whether it is new or was stored before
local clock = server_ms(now)
local record = fields(record_key(id), 'owner', 'past', 'gone')
if not record then return { 'unreadable' } end
local before, past, gone = record[1], record[2], tonumber(record[3] or '') or 0
local head, unreadable = read_head(id)
if unreadable then return { 'unreadable' } end
local entitled = not was_taken_from(past, owner)
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

renew(owner, clock)
redis.call('ZREMRANGEBYSCORE', records_key(), '-inf', int(clock))
redis.call('ZADD', records_key(), int(clock + tonumber(ttl)), id)
apply_delta(plan, clock)
redis.call('HSET', record_key(id), 'owner', owner, 'meta', meta)
redis.call('HDEL', record_key(id), 'gone')
if head and before and before ~= owner then
  redis.call('HSET', record_key(id), 'past', taken_from(past, before, owner))
elseif past then
  redis.call('HSET', record_key(id), 'past', past)
end
redis.call('PEXPIRE', record_key(id), ttl)
redis.call('PEXPIRE', messages_key(id, int(plan.generation)), ttl)
return { 'ok', plan.again and 'again' or 'new' }
