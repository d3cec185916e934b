-- found: fixes the facts of a namespace in one partition; the first one to say them wins.
-- Protects: that a namespace's partitions, durability and birth never change under its users.
-- ARGV: format, partitions, durability, birth, clock
-- Flags: allow-oom
-- Answers: ok
if redis.call('EXISTS', namespace_key()) == 0 then
  redis.call('HSET', namespace_key(), 'format', format, 'partitions', partitions, 'durability', durability, 'birth', birth,
    'clock', clock)
else
  redis.call('HSET', namespace_key(), 'format', redis.call('HGET', namespace_key(), 'format') or format)
end

return { 'ok', redis.call('HGETALL', namespace_key()) }
