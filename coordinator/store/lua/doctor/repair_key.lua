-- repair_key: give a TTL to a key that was left over, remove the TTL of a key that is still needed, or note the key in its run, if the
-- fault still exists.
-- Protects: a checkpoint is never deleted immediately: without its run it is kept for a week.
-- Role: coordinator
-- Keys: ckpt, effects, graph, graph_index, graph_threads, joins, messages, once, output, results, run, schedule
-- Keys: schedules, signal_keys, signal_operations, signals, worker, workers
-- ARGV: family, name, expected, fault
--   family: ckpt, messages, signals, signal-keys, signal-operations, joins, results, output, effects, graph, graph-index,
--     graph-threads, once, worker or schedule
--   name: rest of the key's name
--   expected: the type that the key should have
--   fault: the fault that examine_keys found
-- Flags: allow-oom
-- Uses: time, run, checkpoint, examine, stray
-- Answers: repaired, changed, blocked
--   changed: the fault does not exist any more
--   blocked: the list of schedules has another type and has to be repaired first
if find_leak(family, name, expected) ~= fault or fault == 'mistaken' then return { 'changed' } end
local key, id = key_of(family, name)
local list = type_of(schedules_key())
if fault == 'unwatched' and list ~= 'zset' and list ~= 'none' then return { 'blocked' } end

if fault == 'unwatched' then
  redis.call('ZADD', schedules_key(), 0, name) -- A coordinator checks this schedule next, and computes its fire time.
elseif fault == 'unnoted' then
  add_beside(id, LETTERS[family])
elseif fault == 'mortal' then
  redis.call('PERSIST', key)
elseif fault == 'endless' then
  id = id or string.match(redis.call('GET', key), '^(%S+) ')
  local ttl = redis.call('PTTL', run_key(id))
  redis.call('PEXPIRE', key, ttl > 0 and ttl or WEEK_MS)
elseif family == 'once' then
  redis.call('DEL', key)
else
  redis.call('PEXPIRE', key, family == 'worker' and SOON or WEEK_MS)
end
return { 'repaired' }
