-- record_load: answer a record: whole if it is small enough, otherwise its head first and then page by page.
-- Protects: all pages come from one save.
-- Role: worker
-- Keys: record, record_messages
-- ARGV: id, page, seq, room
--   id: id of the run
--   page: head (all fields, and the messages if they fit, otherwise the names and sizes of their chunks) or chunks
--   seq: number of the save whose head was loaded before
--   room: the largest number of bytes of messages in the answer for the head
-- ITEM: field
--   field: name of a chunk of messages
-- Flags: allow-oom
-- Uses: time, record, checkpoint
-- Unconfirmed: the script only reads
-- Answers: ok, changed, missing, unreadable
--   changed: the record was saved again since its head was loaded
if redis.call('EXISTS', record_key(id)) == 0 then return { 'missing' } end
local gone = read_fields(record_key(id), 'gone')
local head, unreadable = read_head(id)
if gone and not head then return { 'missing' } end
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
