-- load: answer a page of a checkpoint that was too large for the answer of its claim.
-- Protects: only the owner of the run loads pages, so that no page comes from the transcript of another owner; a run whose effects
-- are lost does not continue, so that no effect is carried out twice.
-- Role: worker
-- Keys: ckpt, effects, messages, run
-- ARGV: id, token, page, room
--   id: id of the run
--   token: the token of the run's owner
--   page: head (the fields of the checkpoint, the names of the chunks of messages, and the effects) or chunks (the named chunks)
--   room: the bytes of chunks after which a page ends
-- ITEM: field
--   field: name of a chunk of messages
-- Flags: allow-oom
-- Uses: time, checkpoint
-- Unconfirmed: the script only reads
-- Answers: ok, fenced, unreadable, lost
--   lost: the run has effects, and their key is lost or has another type
local owner_token, beside = read_fields(run_key(id), 'token', 'beside')
if owner_token ~= token then return { 'fenced' } end
local head, unreadable = read_head(id)
if unreadable then return { 'unreadable' } end
local effects = redis.pcall('HLEN', effects_key(id))
if type(effects) ~= 'number' or (effects == 0 and knows_effects(beside)) then return { 'lost' } end
if not head then return { 'ok', redis.call('HGETALL', ckpt_key(id)), {}, redis.call('HGETALL', effects_key(id)) } end
local messages = messages_key(id, int(head.generation))
if type(redis.pcall('HLEN', messages)) ~= 'number' then return { 'unreadable' } end

if page == 'head' then
  return { 'ok', redis.call('HGETALL', ckpt_key(id)), redis.call('HKEYS', messages), redis.call('HGETALL', effects_key(id)) }
end
-- Answer as many of the named chunks as fit into a page, in order, and at least one.
local found, size = {}, 0
for i = 1, items do
  found[i] = redis.call('HGET', messages, item(i))
  size = size + (found[i] and #found[i] or 0)
  if size >= tonumber(room) then break end
end
return { 'ok', found }
