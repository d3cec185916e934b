-- schedule: create or replace a schedule. A paused schedule stays paused. If the rules are unchanged, the next fire time stays: a
-- program may set its schedule at every start without moving the fire time each time.
-- Protects: a call that is sent twice or late does not undo a later one.
-- Role: producer
-- Keys: namespace, schedule, schedules
-- ARGV: now, birth, name, seen, generation, rules, overlap, route, spec, priority, expires, retention
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   birth: the birth mark of the namespace that the caller knows; empty: it is not checked
--   name: name of the schedule
--   seen: the generation that the caller has seen; empty: there was no schedule
--   generation: the generation of this change; a repeated call has the same
--   rules: when the schedule fires, encoded
--   overlap: skip, allow or cancel: what happens at a fire time if the previous run has not ended
--   route: the route of its runs
--   spec: the spec of its runs
--   priority: the priority of its runs
--   expires: ms after which a run is cancelled if no worker has claimed it; empty: never
--   retention: ms that a run is kept after its end; empty: the default of its status
-- Uses: time, schedule
-- Answers: ok, changed, mismatch, unreadable, ungrouped
--   mismatch: the stored birth mark of the namespace is another one
--   unreadable: the list of schedules has another type
--   ungrouped: the schedule is new, its kind has a limit for each group, and the runs of schedules have no group
local stored_birth, limited = unpack(redis.call('HMGET', namespace_key(), 'birth', 'limited'))
if birth ~= '' and stored_birth ~= birth then return { 'mismatch' } end
local clock = server_ms(now)
if type(redis.pcall('ZCARD', schedules_key())) ~= 'number' then return { 'unreadable' } end
local before, other_type = read_schedule(name)
if is_repeated(before, name, generation) then return { 'ok' } end
if (before and before.generation or '') ~= seen then return { 'changed', before and before.generation or '' } end
local _, kind = string.match(route, ROUTE_PARTS)
local known = before and before.route == route -- it was set before the kind got its limit, and programs set it again when they start
if limited and kind and not known and string.find(limited, ' ' .. kind .. ' ', 1, true) then return { 'ungrouped' } end

if other_type then redis.call('UNLINK', schedule_key(name)) end
local paused = before and before.state == 'paused'
local kept = before and before.state == 'active' and before.rules == rules and before.next ~= ''
redis.call('HSET', schedule_key(name), 'generation', generation, 'state', paused and 'paused' or 'active', 'rules', rules,
  'overlap', overlap, 'route', route, 'spec', spec, 'priority', priority, 'expires', expires, 'retention', retention)
redis.call('HDEL', schedule_key(name), 'why')
if before then redis.call('HSET', schedule_key(name), 'past', extend_past(before)) end
if not kept then redis.call('HSET', schedule_key(name), 'after', int(clock), 'next', '', 'due', '') end
look_again_at(name, paused and int(FAR_FUTURE) or kept and before.due or int(clock))
return { 'ok' }
