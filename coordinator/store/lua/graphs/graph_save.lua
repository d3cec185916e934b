-- graph_save: store a checkpoint of a graph, or writes of one of its tasks, with the values that the server does not have yet.
-- Protects: only the owner of a run stores checkpoints of the run's graph; a checkpoint never refers to a value that is not stored;
-- a list that another process has extended is not overwritten; a list is not extended after a part of it was deleted; a repeated
-- regular write changes nothing; no item is compressed against itself, directly or through other items.
-- Role: producer, worker
-- Keys: graph, graph_index, graph_run, graph_threads, namespace, run
-- ARGV: call
--   call: netstrings, which take fewer bytes than arguments: claim, thread, ttl, mode, ns, id, parent, by, body, refs, and then a
--   field and its value for each value that the call stores
--     claim: "<run> <token>" of the run that the graph belongs to and of its owner; empty: the graph belongs to no run
--     thread: id of the thread
--     ttl: ms that the thread is kept after this call; 0: it does not expire
--     mode: w (a whole checkpoint), p (a checkpoint that differs little from its parent) or t (writes of a task)
--     ns: the namespace of the checkpoint: empty for the graph itself, otherwise a subgraph
--     id: id of the checkpoint
--     parent: id of the checkpoint before; empty: none
--     by: id of the task that made the writes, or the run of LangGraph that made the checkpoint; empty: none
--     body: the checkpoint without its channels
--     refs: netstrings "<channel> <version>" of all channels (mode w), or of those that differ from the parent (mode p). The version
--     is left out if it is that of the channel before. In mode t, the path of the task.
--     field: name of a field (see shared/graph.lua); b<channel> for a channel in refs, otherwise b<channel> <version>; w<index> for
--     a write, whose value starts with the netstring of its channel
--     value: content of the field. An empty value of a channel means that the server must have the value already.
--   id, parent and by may be NUL and the 16 bytes of a UUID, which take fewer bytes than its text.
--   In mode p the parent, and in mode t the id, may be '=' and 9 characters of the id: the newest checkpoint, if it has them.
-- Uses: time, run, checkpoint, graph
-- Answers: ok, gap, fenced
--   gap: with the letter of the field that the server lacks or has with other content, or n if its newest checkpoint is another one;
--   the caller then sends more
local clock, parts = server_ms(''), netstrings(call)
local claim, thread, ttl, mode, ns, id, parent, by, body, refs = unpack(parts, 1, 10)
id, parent, by = unpack_id(id), unpack_id(parent), unpack_id(by)
local owner, token = string.match(claim, '^(%S+) (.*)$')
owner = owner or ''
local key, index, letters = graph_key(owner, thread), graph_index_key(owner, thread), nil
if claim ~= '' then
  local owner_token, beside = read_fields(run_key(owner), 'token', 'beside')
  if owner_token ~= token then return { 'fenced' } end
  if not string.find(beside or '', 'g', 1, true) then letters = (beside or '') .. 'g' end
end
local short = mode == 'p' and parent or mode == 't' and id or ''
if string.sub(short, 1, 1) == '=' then
  local newest = newest_id(index, ns)
  if not newest or '=' .. string.sub(newest, 10, 18) ~= short then return { 'gap', 'n' } end
  if mode == 'p' then parent = newest else id = newest end
end
local name, changes = ns .. '\0' .. id, mode == 't' and {} or expand_refs(refs)
local before = mode == 'p' and redis.call('HGET', key, 'r' .. ns .. '\0' .. parent)
if mode == 'p' and not before then return { 'gap', 'r' } end

-- Give each item the name of its field, and find everything that the call refers to.
local versions, fields, contents, sent, digests, needs, bases = {}, {}, {}, {}, {}, {}, {}
for _, ref in ipairs(changes) do versions[string.match(ref, '^[^%z]*')] = ref end
for i = 11, #parts, 2 do
  local field, value = parts[i], parts[i + 1]
  local letter, rest = string.sub(field, 1, 1), string.sub(field, 2)
  if letter == 'b' then
    field = 'b' .. ns .. '\0' .. (versions[rest] or rest)
    needs[#needs + 1] = value == '' and field or add_references(value, digests)
  elseif letter == 'w' then
    field = 'w' .. name .. '\0' .. by .. '\0' .. rest
    value = insert_path(value, refs)
    needs[#needs + 1] = add_references(value_of_write(value), digests)
  elseif letter == 'l' then
    local chunk = redis.call('HGET', key, field)
    if chunk and chunk ~= value then return { 'gap', 'l' } end
    add_digests(value, 1, digests)
    local number = tonumber(string.sub(field, 10))
    if number > 0 then needs[#needs + 1] = string.sub(field, 1, 9) .. int(number - 1) end
  elseif letter == 'i' then
    -- The base of an item is always older than the item: it is stored already, or comes earlier in this call. So items never
    -- refer to each other in a circle, whatever other processes store.
    local base = base_of(value)
    if base and not sent[base] then bases[#bases + 1] = base end
  end
  if value ~= '' then
    fields[#fields + 1], contents[#contents + 1], sent[field] = field, value, true
  end
end
if mode ~= 't' then
  local _, dictionary = parse_body('0:' .. body)
  needs[#needs + 1] = dictionary
end
for _, digest in ipairs(digests) do needs[#needs + 1] = 'i' .. digest end
for _, field in ipairs(needs) do
  -- A chunk that was deleted is empty (see graph_delete). No other field is.
  if not sent[field] and redis.call('HSTRLEN', key, field) == 0 then return { 'gap', string.sub(field, 1, 1) } end
end
for _, field in ipairs(bases) do
  if redis.call('HEXISTS', key, field) == 0 then return { 'gap', 'i' } end
end
redis.call('ZCARD', index) -- If the key has another type, the script fails here, before its first write.

for i, field in ipairs(fields) do
  if string.sub(field, 1, 1) == 'w' then redis.call('ZADD', index, 0, field) end
  store_field(key, field, contents[i])
end
if mode ~= 't' then
  redis.call('HSET', key, 'c' .. name, netstring(parent) .. body, 'r' .. name, merge_refs(before or '', changes))
  redis.call('ZADD', index, 0, 'c' .. name)
  if by ~= '' then
    redis.call('ZADD', index, 0, 'u' .. by .. '\0' .. name)
    if owner == '' then -- A graph that belongs to a run of ours has few threads, which are found without this set.
      redis.call('SADD', graph_run_key(by), thread)
      expire(graph_run_key(by), ttl)
    end
  end
end
if letters then redis.call('HSET', run_key(owner), 'beside', letters) end
redis.call('ZREMRANGEBYSCORE', graph_threads_key(owner), '-inf', int(clock))
redis.call('ZADD', graph_threads_key(owner), int(ttl == '0' and FAR_FUTURE or clock + tonumber(ttl)), thread)
if owner == '' then
  expire(key, ttl)
  expire(index, ttl)
end
return { 'ok' }
