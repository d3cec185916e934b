-- unschedule: remove a schedule. A tombstone of the schedule stays for ten minutes, after which `upcoming` removes its entry.
-- Protects: a call that is sent twice or late does not undo a later one, and a late call does not restore the schedule.
-- Role: producer
-- Keys: namespace, schedule, schedules
-- ARGV: now, name, seen, generation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   name: name of the schedule
--   seen: the generation that the caller has seen; empty: there was no schedule
--   generation: the generation of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: time, schedule
-- Answers: ok, changed, missing
local clock = server_ms(now)
local schedule, other_type = read_schedule(name)
local refusal = not other_type and refuse_change(schedule, name, seen, generation)
if refusal then return refusal end

redis.call('UNLINK', schedule_key(name))
redis.call('HSET', schedule_key(name), 'generation', generation, 'state', 'removed')
if schedule then redis.call('HSET', schedule_key(name), 'past', extend_past(schedule)) end
if schedule and schedule.last then redis.call('HSET', schedule_key(name), 'last', schedule.last) end
look_again_at(name, int(clock + REMOVED_MS))
return { 'ok' }
