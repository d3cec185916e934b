-- repair_entry: remove an entry without a run, or an entry of a run that belongs in another set, if the fault still exists.
-- Protects: an entry of aside is removed only if its run has no fault; a worker without an entry of its own is condemned, so that a
-- coordinator recovers its runs.
-- Role: coordinator
-- Keys: admitted, aside, ckpt, deadlines, delayed, ended, groups, holders, joins, line, live, namespace, owned, parting
-- Keys: ready, results, routes, run, schedule, schedules, signals, starting, suspect, turns, waiting, worker, workers
-- ARGV: now, place, name, member, fault
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   place: family of the key
--   name: rest of the key's name: a route, a worker, a status or a rate; empty: none
--   member: a member of the set
--   fault: the fault that examine_entries found
-- Flags: allow-oom
-- Uses: time, run, checkpoint, spend, children, waiting, examine, stray
-- Answers: repaired, changed, blocked
--   changed: the fault does not exist any more
--   blocked: the run of the entry has to be repaired first
if find_stray(place, name, member, server_ms(now)) ~= fault or not is_still_in(place, name, member) then return { 'changed' } end
if place == 'aside' then
  local id = run_named(place, member)
  local faults = id and find_faults(id)
  if faults and #faults > 0 then return { 'blocked' } end
end

if place == 'workers' then
  redis.call('HSET', worker_key(member), 'condemned', 'excused')
  redis.call('ZADD', workers_key(), 0, member)
elseif place == 'live' then
  redis.call('SREM', live_key(), member)
elseif place == 'owned' then
  redis.call('SREM', owned_key(name), member)
elseif place == 'admitted' then
  redis.call('SREM', admitted_key(name), member) -- A coordinator gives the place to the next run.
elseif place == 'starting' then
  redis.call('SREM', starting_key(name), member)
elseif place == 'line' then
  redis.call('ZREM', line_key(name), member)
elseif place == 'holders' then
  redis.call('ZREM', holders_key(name), member)
elseif place == 'turns' then
  redis.call('ZREM', turns_key(name), member)
elseif place == 'ready' then
  redis.call('ZREM', ready_key(name), member)
elseif place == 'suspect' then
  redis.call('ZREM', suspect_key(name), member)
elseif place == 'schedules' then
  redis.call('ZREM', schedules_key(), member)
elseif place == 'ended' then
  redis.call('ZREM', ended_key(name), member)
elseif place == 'delayed' then
  redis.call('ZREM', delayed_key(), member)
elseif place == 'waiting' then
  redis.call('ZREM', waiting_key(), member)
elseif place == 'aside' then
  redis.call('ZREM', aside_key(), member)
elseif place == 'parting' then
  redis.call('ZREM', parting_key(), member)
else
  redis.call('ZREM', deadlines_key(), member)
end
return { 'repaired' }
