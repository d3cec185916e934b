-- rate: set or remove the rate of external calls. Calls that have started continue. Calls that wait ask again, from the first on.
-- Protects: a call that is sent twice or late does not undo a later change; until the change, the level falls with the old speed.
-- Role: producer
-- Keys: bucket, holders, inbox, namespace, pauses, rates, turns, workers
-- ARGV: now, name, rate, seen, operation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   name: name of the rate
--   rate: "<amount> <ms> <burst> <calls at once>", each a whole number or '-' for no limit; empty: remove the rate
--   seen: the text in the last answer 'changed'; empty: the caller has none yet, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: time, queue, pause, calls, rates
-- Answers: ok, again, changed, bad, unreadable
--   again: the rate already had this value
--   changed: with "<operation of the last change>@<the server's time in ms>"; the caller sends the change again with it as seen
--   bad: an argument can't be read
--   unreadable: a key has another type
local amount, per, burst, at_once = string.match(rate, '^(%S+) (%S+) (%S+) (%S+)$')
local limited = amount and string.find(amount .. ' ' .. per .. ' ' .. burst, '^[1-9]%d* [1-9]%d* [1-9]%d*$')
local free = amount and amount .. per .. burst == '---'
local places = at_once and (at_once == '-' or string.find(at_once, '^%d+$'))
if not string.find(name, '^[%w_.-]+$') or not (rate == '' or places and #rate <= 60 and (limited or free)) then return { 'bad' } end
local clock, known, missing = server_ms(now), read_rate(name)
local speed = known and known.speed or 0
local bucket = missing ~= 'unreadable' and read_bucket(name, speed, clock, '')
if not bucket then return { 'unreadable' } end
local answer, changes = check_change('rate:' .. name, seen, operation)
if answer then return answer end

local before = redis.call('HGET', rates_key(), name) or ''
if rate ~= '' then
  redis.call('HSET', rates_key(), name, rate)
else
  redis.call('HDEL', rates_key(), name)
end
if redis.call('EXISTS', bucket_key(name)) == 1 then
  known = read_rate(name)
  bucket.late = bucket.ticket
  hint_turns(name, 0, MOST_HINTS - 1)
  write_bucket(name, bucket, known and known.speed or 0, clock, '')
end
local word = before == rate and 'again' or 'ok'
remember_change('rate:' .. name, operation, word, changes)
return { word }
