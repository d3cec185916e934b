-- transcript: answer a page of the messages that the checkpoint of a run has saved.
-- Role: producer, read-only
-- Keys: ckpt, messages, run
-- ARGV: id, number, room
--   id: id of the run
--   number: number of the first message of the page, from 0
--   room: bytes of messages in one page; a page has at least one chunk
-- Flags: no-writes
-- Uses: time, checkpoint
-- Answers: ok, missing, unreadable
--   ok: with the generation and the number of messages of the transcript, and the chunks, each after the number of its first message
if redis.call('EXISTS', run_key(id)) == 0 then return { 'missing' } end
local head, unreadable = read_head(id)
if unreadable then return { 'unreadable' } end
if not head then return { 'ok', 0, 0, {} } end
local messages = messages_key(id, int(head.generation))
local fields = redis.pcall('HKEYS', messages)
if fields.err then return { 'unreadable' } end

local starts, first = {}, 1
for i = 1, #fields do starts[i] = natural(fields[i]) or 0 end
table.sort(starts)
-- The page begins with the chunk that contains the message.
for i = 1, #starts do
  if starts[i] <= tonumber(number) then first = i end
end
local page, size = {}, 0
for i = first, #starts do
  local chunk = redis.call('HGET', messages, int(starts[i]))
  page[#page + 1], page[#page + 2] = int(starts[i]), chunk or ''
  size = size + #page[#page]
  if size >= tonumber(room) then break end
end
return { 'ok', head.generation, head.length, page }
