-- graph_history: answer the writes of some channels before a checkpoint of a graph, and the last stored values of these channels.
-- The values of delta channels are made from them.
-- Role: producer, worker
-- Keys: graph, graph_index
-- ARGV: owner, thread, ns, id, most, room
--   owner: the run that the graph belongs to; empty: the graph belongs to no run
--   thread: id of the thread
--   ns: the namespace of the checkpoint
--   id: id of the checkpoint at which the walk starts; its own writes are part of the answer
--   most: the largest number of checkpoints that the call visits
--   room: the bytes of items after which the answer has no more items; the caller reads the others itself
-- ITEM: channel
--   channel: name of a channel
-- Flags: no-writes
-- Uses: time, run, checkpoint, graph
-- Answers: ok
--   ok: with the id of the next checkpoint (empty: the walk is over), a channel and its stored value for each channel that has one,
--   fields and values of the writes, newest checkpoint first, and fields and values of the chunks and items that these refer to
local key, index = graph_key(owner, thread), graph_index_key(owner, thread)
local left, count, seeds, writes, digests, parts = {}, items, {}, {}, {}, {}
for i = 1, items do left[item(i)] = true end
local visited = 0
while id ~= '' and count > 0 and visited < tonumber(most) do
  local name = ns .. '\0' .. id
  local checkpoint = redis.call('HGET', key, 'c' .. name)
  if not checkpoint then
    id = ''
    break
  end
  for _, field in ipairs(names_from(index, 'w' .. name .. '\0')) do
    local write = redis.call('HGET', key, field)
    local value, channel = value_of_write(write)
    if left[channel] then
      writes[#writes + 1] = field
      writes[#writes + 1] = write
      visit_value(key, value, digests, parts)
    end
  end
  for _, ref in ipairs(netstrings(redis.call('HGET', key, 'r' .. name))) do
    local channel = string.match(ref, '^[^%z]*')
    local value = left[channel] and redis.call('HGET', key, 'b' .. ns .. '\0' .. ref)
    if value then
      seeds[#seeds + 1] = channel
      seeds[#seeds + 1] = value
      visit_value(key, value, digests, parts)
      left[channel], count = nil, count - 1
    end
  end
  visited, id = visited + 1, parse_body(checkpoint)
end
return { 'ok', count > 0 and id or '', seeds, writes, add_items(key, digests, parts, tonumber(room)) }
