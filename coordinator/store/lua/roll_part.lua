-- roll_part: how far a supervisor has come in a roll. Where it failed, those that wait for their turn are stopped.
-- Protects: what is over stays over, and another roll's part is not touched.
-- ARGV: fleet, roll, supervisor, part, state
-- Flags: allow-oom
-- Answers: ok, over
local mine = 'part:' .. supervisor
local known = redis.call('HMGET', roll_key(fleet), 'roll', mine)
if known[1] ~= roll or not known[2] then return { 'over' } end
if not (string.match(known[2], '^waiting') or string.match(known[2], '^going')) then return { 'over' } end

redis.call('HSET', roll_key(fleet), mine, part)
redis.call('PEXPIRE', roll_key(fleet), 3600000)
if state == 'going' then return { 'ok' } end
local all = redis.call('HGETALL', roll_key(fleet))
for i = 1, #all, 2 do
  local other = string.match(all[i], '^part:(.+)$')
  if other and all[i + 1] == 'waiting' then
    if state == 'failed' then redis.call('HSET', roll_key(fleet), all[i], 'stopped') end
    redis.call('RPUSH', inbox_key(other), 'roll')
    redis.call('PEXPIRE', inbox_key(other), 60000)
  end
end
return { 'ok' }
