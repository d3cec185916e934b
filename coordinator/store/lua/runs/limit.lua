-- limit: set or remove the limit or the rate of starts of a kind or of a group. Runs that have a place keep it.
-- Protects: a call that is sent twice or late does not undo a later change.
-- Role: producer
-- Keys: limits, namespace, pauses
-- ARGV: kind, group, at_once, rate, seen, operation
--   kind: name of the kind
--   group: name of the group; empty: the limit is for each group of the kind
--   at_once: how many runs of a group may be ready or running at the same time; '-': no limit; empty: remove the limit; '=': keep it
--   rate: how many runs of a group may start per time, as "<number> <ms> <burst>"; '-': no rate; empty: remove the rate; '=': keep it
--   seen: the text in the last answer 'changed'; empty: the caller has none yet, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: pause, limited
-- Answers: ok, again, changed, bad, unreadable
--   again: the limit already had this value
--   changed: with "<operation of the last change>@<the server's time in ms>"; the caller sends the change again with it as seen
--   bad: an argument can't be read
--   unreadable: a key has another type
local function is_word(text) return text == '' or text == '-' or text == '=' end
if not string.find(kind, '^[%w_.-]+$') or not (is_word(at_once) or string.find(at_once, '^%d+$') and #at_once <= 9)
  or not (is_word(rate) or string.find(rate, '^[1-9]%d* [1-9]%d* [1-9]%d*$') and #rate <= 40) then
  return { 'bad' }
end
if type(redis.pcall('HLEN', limits_key())) ~= 'number' then return { 'unreadable' } end
local name = 'limit:' .. kind .. ':' .. group
local answer, changes = check_change(name, seen, operation)
if answer then return answer end

-- Return true if the field has another value now.
local function change(field, value)
  local before = redis.call('HGET', limits_key(), field) or ''
  if value == '=' or value == before then return false end
  if value ~= '' then
    redis.call('HSET', limits_key(), field, value)
  else
    redis.call('HDEL', limits_key(), field) -- If no worker has published a limit of its handler yet, new runs wait for it.
  end
  return true
end
local field = group ~= '' and 'group:' .. kind .. ':' .. group or 'kind:' .. kind
local changed = change(field, at_once)
changed = change('rate:' .. field, rate) or changed
mark_limited(kind)
local word = changed and 'ok' or 'again'
remember_change(name, operation, word, changes)
return { word }
