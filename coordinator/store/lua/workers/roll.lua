-- roll: ask the supervisors of a fleet to replace their processes, one supervisor after the other.
-- Protects: a fleet has one roll at a time; a repeated call changes nothing; a roll does not wait for a supervisor that was not
-- seen lately.
-- Role: worker
-- Keys: inbox, namespace, roll, supervisors
-- ARGV: now, fleet, roll, at_once, by, silence
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   fleet: name of the fleet
--   roll: id of this roll; a repeated call has the same
--   at_once: processes of one supervisor that are replaced at the same time
--   by: the user who asked for the roll, for people
--   silence: ms after which a supervisor that was not seen counts as gone
-- Flags: allow-oom
-- Uses: time, queue
-- Answers: ok, busy, nobody
--   busy: another roll is under way; with the user who asked for it, and its age in ms
--   nobody: the fleet has no supervisor
local clock = server_ms(now)
local last_roll, last_by, last_asked = unpack(redis.call('HMGET', roll_key(fleet), 'roll', 'by', 'asked'))
if last_roll == roll then return { 'ok' } end
local supervisors = redis.call('ZRANGEBYSCORE', supervisors_key(fleet), int(clock - tonumber(silence)), '+inf', 'LIMIT', 0, 1000)
if #supervisors == 0 then return { 'nobody' } end
if last_roll then
  for _, supervisor in ipairs(supervisors) do
    local part = redis.call('HGET', roll_key(fleet), 'part:' .. supervisor)
    if part and (string.match(part, '^waiting') or string.match(part, '^going')) then
      return { 'busy', last_by, int(clock - tonumber(last_asked)) }
    end
  end
end

redis.call('DEL', roll_key(fleet))
redis.call('HSET', roll_key(fleet), 'roll', roll, 'by', by, 'asked', int(clock), 'at_once', at_once)
for _, supervisor in ipairs(supervisors) do
  redis.call('HSET', roll_key(fleet), 'part:' .. supervisor, 'waiting')
  notify(supervisor, 'roll')
end
redis.call('PEXPIRE', roll_key(fleet), ROLL_MS)
return { 'ok' }
