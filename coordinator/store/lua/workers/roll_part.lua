-- roll_part: record the progress of a supervisor in a roll. If the supervisor failed, the roll ends for the supervisors that wait.
-- Protects: a part that is over stays over; a part of another roll is not touched.
-- Role: worker
-- Keys: inbox, roll
-- ARGV: fleet, roll, supervisor, part, state
--   fleet: name of the fleet
--   roll: id of the roll
--   supervisor: id of the supervisor
--   part: the state and counts to store
--   state: the first word of the part: going, failed or another end
-- Flags: allow-oom
-- Uses: queue
-- Answers: ok, over
local mine = 'part:' .. supervisor
local current_roll, known_part = unpack(redis.call('HMGET', roll_key(fleet), 'roll', mine))
if current_roll ~= roll or not known_part then return { 'over' } end
if not (string.match(known_part, '^waiting') or string.match(known_part, '^going')) then return { 'over' } end

redis.call('HSET', roll_key(fleet), mine, part)
redis.call('PEXPIRE', roll_key(fleet), ROLL_MS)
if state == 'going' then return { 'ok' } end
local all = redis.call('HGETALL', roll_key(fleet))
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  local other = string.match(field, '^part:(.+)$')
  if other and value == 'waiting' then
    if state == 'failed' then redis.call('HSET', roll_key(fleet), field, 'stopped') end
    notify(other, 'roll')
  end
end
return { 'ok' }
