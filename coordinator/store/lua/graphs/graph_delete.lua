-- graph_delete: delete a thread of a graph, or some of its checkpoints with their writes and all values that no other checkpoint uses.
-- Protects: only the owner of a run deletes checkpoints of the run's graph; a value that is still used stays; two processes never
-- give the same name to different chunks of a list.
-- Role: producer, worker
-- Keys: graph, graph_index, graph_run, graph_threads, run
-- ARGV: claim, thread, mode
--   claim: "<run> <token>" of the run that the graph belongs to and of its owner; empty: the graph belongs to no run
--   thread: id of the thread
--   mode: thread (everything), or checkpoints
-- ITEM: name
--   name: "<namespace> <checkpoint>" of a checkpoint to delete, with NUL between them
-- Flags: allow-oom
-- Uses: time, run, checkpoint, graph
-- Answers: ok, fenced
local owner, token = string.match(claim, '^(%S+) (.*)$')
owner = owner or ''
local key, index = graph_key(owner, thread), graph_index_key(owner, thread)
if claim ~= '' and read_fields(run_key(owner), 'token') ~= token then return { 'fenced' } end
local gone, dead_names, dead_fields, alive = {}, {}, {}, {}
for i = 1, items do gone[(item(i))] = true end
-- A repeated call has nothing to delete. It writes too, so that it is confirmed only when the first call is.
redis.call('ZADD', graph_threads_key(owner), 0, '')
redis.call('ZREM', graph_threads_key(owner), '')
for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[u', '(v')) do
  local run, name = string.match(member, '^u([^%z]*)%z(.*)$')
  if mode == 'thread' or gone[name] then dead_names[#dead_names + 1] = member else alive[run] = true end
end
for _, member in ipairs(dead_names) do
  local run = string.match(member, '^u([^%z]*)')
  if owner == '' and not alive[run] then redis.call('SREM', graph_run_key(run), thread) end
end
if mode == 'thread' then
  redis.call('UNLINK', key, index)
  redis.call('ZREM', graph_threads_key(owner), thread)
  return { 'ok' }
end

-- Find everything that the remaining checkpoints and writes use. Everything else is deleted.
local used, digests, chunks = {}, {}, {}
for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[c', '(d')) do
  local name = string.sub(member, 2)
  if gone[name] then
    dead_names[#dead_names + 1] = member
  else
    local checkpoint, refs = unpack(redis.call('HMGET', key, member, 'r' .. name))
    used[member], used['r' .. name] = true, true
    local _, dictionary = parse_body(checkpoint)
    if dictionary then used[dictionary] = true end
    local ns = string.match(name, '^[^%z]*')
    for _, ref in ipairs(netstrings(refs)) do
      local field = 'b' .. ns .. '\0' .. ref
      local value = not used[field] and redis.call('HGET', key, field)
      if value then
        used[field] = true
        visit_value(key, value, digests, chunks)
      end
    end
  end
end
for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[w', '(x')) do
  if gone[string.match(member, '^w([^%z]*%z[^%z]*)')] then
    dead_names[#dead_names + 1] = member
  else
    used[member] = true
    visit_value(key, (value_of_write(redis.call('HGET', key, member))), digests, chunks)
  end
end
for i = 1, #chunks, 2 do used[chunks[i]] = true end
local place = 1
while digests[place] do
  local field = 'i' .. digests[place]
  local value = not used[field] and redis.call('HGET', key, field)
  if value then
    local base = base_of(value)
    used[field] = true
    if base then digests[#digests + 1] = string.sub(base, 2) end
  end
  place = place + 1
end
for _, field in ipairs(redis.call('HKEYS', key)) do
  -- A process that knows a deleted chunk must not continue the list after it, because another process may have read the list without
  -- the chunk, and would give the chunk's name to another one. So the name stays, without content.
  local number = string.sub(field, 1, 1) == 'l' and tonumber(string.sub(field, 10))
  if not used[field] and number and used[string.sub(field, 1, 9) .. int(number - 1)] then
    redis.call('HSET', key, field, '')
  elseif not used[field] then
    dead_fields[#dead_fields + 1] = field
  end
end
for from = 1, #dead_names, BATCH do
  redis.call('ZREM', index, unpack(dead_names, from, math.min(from + BATCH - 1, #dead_names)))
end
for from = 1, #dead_fields, BATCH do
  redis.call('HDEL', key, unpack(dead_fields, from, math.min(from + BATCH - 1, #dead_fields)))
end
if redis.call('EXISTS', key) == 0 then redis.call('ZREM', graph_threads_key(owner), thread) end
return { 'ok' }
