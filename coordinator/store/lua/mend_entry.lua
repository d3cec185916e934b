-- mend_entry: takes out an entry that names no run, or a run that is elsewhere, if what was seen of it is still so.
-- Protects: an entry that was put aside goes only when nothing is wrong with its run; a worker of which nothing is known is
-- condemned, so that a coordinator takes its runs.
-- ARGV: now, place, name, member, fault
-- Flags: allow-oom
-- Uses: time, run, checkpoint, examine, stray
-- Answers: mended, changed, blocked
if stray(place, name, member, server_ms(now)) ~= fault or not still_in(place, name, member) then return { 'changed' } end
if place == 'aside' then
  local id = run_named(place, member)
  local found = id and faults(id)
  if found and #found > 0 then return { 'blocked' } end
end

if place == 'workers' then
  redis.call('HSET', worker_key(member), 'condemned', 'excused')
  redis.call('ZADD', workers_key(), 0, member)
elseif place == 'live' then
  redis.call('SREM', live_key(), member)
elseif place == 'owned' then
  redis.call('SREM', owned_key(name), member)
elseif place == 'ready' then
  redis.call('ZREM', ready_key(name), member)
elseif place == 'suspect' then
  redis.call('ZREM', suspect_key(name), member)
elseif place == 'schedules' then
  redis.call('ZREM', schedules_key(), member)
elseif place == 'ended' then
  redis.call('ZREM', ended_key(name), member)
else
  redis.call('ZREM', place == 'delayed' and delayed_key() or place == 'aside' and aside_key() or deadlines_key(), member)
end
return { 'mended' }
