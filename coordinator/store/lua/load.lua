-- load: a page of a checkpoint that was too large to go along with its claim.
-- Protects: only the owner reads on, so that a page never comes from another owner's transcript.
-- ARGV: id, token, page, room
-- ITEM: field
-- Flags: allow-oom
-- Uses: time, run, checkpoint
-- Unconfirmed: it only looks
-- Answers: ok, fenced, unreadable
-- page is 'head' (everything but the messages, and which chunks there are) or 'chunks' (the named ones)
local run = fields(run_key(id), 'token')
if not run or run[1] ~= token then return { 'fenced' } end
local head, unreadable = read_head(id)
if unreadable then return { 'unreadable' } end
if not head then return { 'ok', {}, {} } end
local messages = messages_key(id, int(head.generation))
if type(redis.pcall('HLEN', messages)) ~= 'number' then return { 'unreadable' } end

if page == 'head' then
  return { 'ok', redis.call('HGETALL', ckpt_key(id)), redis.call('HKEYS', messages) }
end
-- as many of the named ones as fit into a page, in order, and at least one
local found, size = {}, 0
for i = 1, items do
  found[i] = redis.call('HGET', messages, item(i))
  size = size + (found[i] and #found[i] or 0)
  if size >= tonumber(room) then break end
end
return { 'ok', found }
