-- graph_copy: add content of one thread of a graph to another one. The names of checkpoints come with the last call.
-- Protects: only the owner of a run copies into the run's graph; no checkpoint is found before all its values are stored.
-- Role: producer, worker
-- Keys: graph, graph_index, graph_run, graph_threads, namespace, run
-- ARGV: claim, thread, ttl
--   claim: "<run> <token>" of the run that the graph belongs to and of its owner; empty: the graph belongs to no run
--   thread: id of the thread to which the content is added
--   ttl: ms that the thread is kept after this call; 0: it does not expire
-- ITEM: field, value
--   field: name of a field; empty: the item is a name of the sorted set
--   value: content of the field, or the name
-- Uses: time
-- Answers: ok, fenced
local clock = server_ms('')
local owner, token = string.match(claim, '^(%S+) (.*)$')
owner = owner or ''
local key, index = graph_key(owner, thread), graph_index_key(owner, thread)
if claim ~= '' and read_fields(run_key(owner), 'token') ~= token then return { 'fenced' } end
redis.call('ZCARD', index) -- If the key has another type, the script fails here, before its first write.
for i = 1, items do
  local field, value = item(i)
  if string.sub(field, 1, 1) == 'i' then
    redis.call('HSETNX', key, field, value) -- An item of the same content may be compressed against another item.
  elseif field ~= '' then
    redis.call('HSET', key, field, value)
  else
    redis.call('ZADD', index, 0, value)
    local run = string.match(value, '^u([^%z]*)')
    if run and owner == '' then
      redis.call('SADD', graph_run_key(run), thread)
      if ttl ~= '0' then redis.call('PEXPIRE', graph_run_key(run), ttl) end
    end
  end
end
redis.call('ZADD', graph_threads_key(owner), int(ttl == '0' and FAR_FUTURE or clock + tonumber(ttl)), thread)
if ttl ~= '0' then
  redis.call('PEXPIRE', key, ttl)
  redis.call('PEXPIRE', index, ttl)
end
return { 'ok' }
