-- schedule: keeps a schedule under its name, in the place of what was there. It stays paused, and where its rules are the same its
-- next fire time stays: who sets it at every start of a program does not push it away each time.
-- Protects: a call that is sent twice or late does not undo a later one.
-- ARGV: now, birth, name, seen, generation, rules, overlap, route, spec, priority, expires, retention
-- Uses: time, run, schedule
-- Answers: ok, changed, stranger, unreadable
if birth ~= '' and redis.call('HGET', namespace_key(), 'birth') ~= birth then return { 'stranger' } end
local clock = server_ms(now)
if type(redis.pcall('ZCARD', schedules_key())) ~= 'number' then return { 'unreadable' } end
local before, other = read_schedule(name)
if before and before.generation == generation then
  redis.call('HSET', schedule_key(name), 'generation', generation)
  return { 'ok' }
end
if (before and before.generation or '') ~= seen then return { 'changed', before and before.generation or '' } end

if other then redis.call('UNLINK', schedule_key(name)) end
local paused = before and before.state == 'paused'
local kept = before and before.state == 'active' and before.rules == rules and before.next ~= ''
redis.call('HSET', schedule_key(name), 'generation', generation, 'state', paused and 'paused' or 'active', 'rules', rules,
  'overlap', overlap, 'route', route, 'spec', spec, 'priority', priority, 'expires', expires, 'retention', retention)
redis.call('HDEL', schedule_key(name), 'why')
if not kept then redis.call('HSET', schedule_key(name), 'after', int(clock), 'next', '', 'due', '') end
look_at(name, paused and NEVER or kept and before.due or int(clock))
return { 'ok' }
