-- graph_get: answer a checkpoint of a graph, with the values of its channels and its pending writes.
-- Role: producer, worker
-- Keys: graph, graph_index
-- ARGV: owner, thread, ns, id, room
--   owner: the run that the graph belongs to; empty: the graph belongs to no run
--   thread: id of the thread
--   ns: the namespace of the checkpoint
--   id: id of the checkpoint; empty: the newest one
--   room: the bytes of items after which the answer has no more items; the caller reads the others itself
-- Flags: no-writes
-- Uses: time, run, checkpoint, graph
-- Answers: ok, missing
--   ok: with the id, the checkpoint, its references, fields and values of its channels and writes, and fields and values of the
--   chunks, dictionaries and items that these refer to
local key, index = graph_key(owner, thread), graph_index_key(owner, thread)
if id == '' then id = newest_id(index, ns) end
if not id then return { 'missing' } end
local name = ns .. '\0' .. id
local checkpoint = redis.call('HGET', key, 'c' .. name)
if not checkpoint then return { 'missing' } end
local refs = redis.call('HGET', key, 'r' .. name)
local values, digests, parts = {}, {}, {}
for _, ref in ipairs(netstrings(refs)) do
  local field = 'b' .. ns .. '\0' .. ref
  local value = redis.call('HGET', key, field)
  if value then
    values[#values + 1] = field
    values[#values + 1] = value
    visit_value(key, value, digests, parts)
  end
end
for _, field in ipairs(names_from(index, 'w' .. name .. '\0')) do
  local value = redis.call('HGET', key, field)
  values[#values + 1] = field
  values[#values + 1] = value
  visit_value(key, (value_of_write(value)), digests, parts)
end
local _, dictionary = parse_body(checkpoint)
if dictionary then
  parts[#parts + 1] = dictionary
  parts[#parts + 1] = redis.call('HGET', key, dictionary)
end
return { 'ok', id, checkpoint, refs, values, add_items(key, digests, parts, tonumber(room)) }
