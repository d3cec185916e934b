-- mend_key: gives an end to a key that was left over, or takes it from one that is still needed, if what was seen is still so.
-- Protects: a checkpoint is never deleted at once: without its run it is kept for a week.
-- ARGV: family, name, expected, fault
-- Flags: allow-oom
-- Uses: time, run, checkpoint, examine, stray
-- Answers: mended, changed, blocked
if leaked(family, name, expected) ~= fault or fault == 'mistaken' then return { 'changed' } end
local key, id = key_of(family, name)
local list = type_of(schedules_key())
if fault == 'unwatched' and list ~= 'zset' and list ~= 'none' then return { 'blocked' } end

if fault == 'unwatched' then
  redis.call('ZADD', schedules_key(), 0, name) -- the next look decides
elseif fault == 'mortal' then
  redis.call('PERSIST', key)
elseif fault == 'endless' then
  id = id or string.match(redis.call('GET', key), '^(%S+) ')
  local ttl = redis.call('PTTL', run_key(id))
  redis.call('PEXPIRE', key, ttl > 0 and ttl or WEEK)
elseif family == 'once' then
  redis.call('DEL', key)
else
  redis.call('PEXPIRE', key, family == 'worker' and SOON or WEEK)
end
return { 'mended' }
