-- record_load: a record, whole where it is small enough, else its head and then page by page.
-- Protects: all pages are of one save.
-- ARGV: id, page, seq, room
-- ITEM: field
-- Flags: allow-oom
-- Uses: time, run, record, checkpoint
-- Unconfirmed: it only looks
-- Answers: ok, changed, missing, unreadable
-- page is 'head' (everything but the messages, and these too where they have room; else which chunks there are) or 'chunks'
if redis.call('EXISTS', record_key(id)) == 0 then return { 'missing' } end
local record = fields(record_key(id), 'gone')
local head, unreadable = read_head(id)
if record and record[1] and not head then return { 'missing' } end
if unreadable or not head then return { 'unreadable' } end
local messages = messages_key(id, int(head.generation))
if type(redis.pcall('HLEN', messages)) ~= 'number' then return { 'unreadable' } end

if page == 'head' then
  local content = redis.call('HGETALL', record_key(id))
  if head.size <= tonumber(room) then return { 'ok', content, 'whole', redis.call('HGETALL', messages) } end
  local chunks = {}
  for _, field in ipairs(redis.call('HKEYS', messages)) do
    chunks[#chunks + 1] = field
    chunks[#chunks + 1] = redis.call('HSTRLEN', messages, field)
  end
  return { 'ok', content, 'sizes', chunks }
end
if int(head.seq) ~= seq then return { 'changed' } end
local found = {}
for i = 1, items do found[i] = redis.call('HGET', messages, item(i)) end
return { 'ok', found }
