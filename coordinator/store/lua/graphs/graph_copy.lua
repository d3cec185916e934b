-- graph_copy: add content of one thread of a graph to another one. The names of checkpoints come with the last calls.
-- Protects: only the owner of a run copies into the run's graph; no checkpoint is found before all its values are stored, also if
-- another process deletes from the thread during the copy.
-- Role: producer, worker
-- Keys: graph, graph_index, graph_run, graph_threads, namespace, run
-- ARGV: claim, thread, ttl, copy
--   claim: "<run> <token>" of the run that the graph belongs to and of its owner; empty: the graph belongs to no run
--   thread: id of the thread to which the content is added
--   ttl: ms that the thread is kept after this call; 0: it does not expire
--   copy: random name of the copy. The first call stores the field x<copy>. Every deletion removes it.
-- ITEM: field, value
--   field: name of a field; empty: the item is a name of the sorted set
--   value: content of the field, or the name. Empty: delete the field
-- Uses: time, run, checkpoint, graph
-- Answers: ok, gap, fenced
--   gap: content was deleted since the copy began. The caller then starts again
local clock = server_ms('')
local owner, token = string.match(claim, '^(%S+) (.*)$')
owner = owner or ''
local key, index = graph_key(owner, thread), graph_index_key(owner, thread)
if claim ~= '' and read_fields(run_key(owner), 'token') ~= token then return { 'fenced' } end
for i = 1, items do
  if item(i) == '' and redis.call('HEXISTS', key, 'x' .. copy) == 0 then return { 'gap' } end
end
redis.call('ZCARD', index) -- If the key has another type, the script fails here, before its first write.
for i = 1, items do
  local field, value = item(i)
  if value == '' then
    redis.call('HDEL', key, field)
  elseif field ~= '' then
    store_field(key, field, value)
  else
    redis.call('ZADD', index, 0, value)
    local run = string.match(value, '^u([^%z]*)')
    if run and owner == '' then
      redis.call('SADD', graph_run_key(run), thread)
      expire(graph_run_key(run), ttl)
    end
  end
end
redis.call('ZADD', graph_threads_key(owner), int(ttl == '0' and FAR_FUTURE or clock + tonumber(ttl)), thread)
if owner == '' then
  expire(key, ttl)
  expire(index, ttl)
end
return { 'ok' }
