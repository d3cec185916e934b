-- create_namespace: store the facts of a namespace in one partition, unless an earlier call has stored them.
-- Protects: the partitions, durability and birth mark of a namespace never change.
-- Role: producer, worker, coordinator
-- Keys: namespace
-- ARGV: format, partitions, durability, birth, clock
--   format: version of the stored format
--   partitions: number of partitions
--   durability: none, local, synced or replicated(n)
--   birth: a new mark, which is stored if this call creates the namespace
--   clock: server, or test if calls may give the time
-- Flags: allow-oom
-- Answers: ok
--   ok: with the stored facts
if redis.call('EXISTS', namespace_key()) == 0 then
  redis.call('HSET', namespace_key(), 'format', format, 'partitions', partitions, 'durability', durability, 'birth', birth,
    'clock', clock)
else
  redis.call('HSET', namespace_key(), 'format', redis.call('HGET', namespace_key(), 'format') or format)
end

return { 'ok', redis.call('HGETALL', namespace_key()) }
