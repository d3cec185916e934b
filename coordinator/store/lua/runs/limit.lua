-- limit: set or remove the limit of a kind or of a group. Runs that have a place keep it.
-- Protects: a call that is sent twice or late does not undo a later change.
-- Role: producer
-- Keys: limits, namespace, pauses
-- ARGV: kind, group, at_once, seen, operation
--   kind: name of the kind
--   group: name of the group; empty: the limit is for each group of the kind
--   at_once: how many runs of a group may be ready or running at the same time; '-': no limit; empty: remove the limit
--   seen: what the last answer 'changed' told the caller; empty: the caller knows nothing, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: pause, limited
-- Answers: ok, again, changed, bad, unreadable
--   again: the limit was set like this before
--   changed: with the operation of the last change and the server's time; the caller sends the change again with them as seen
--   bad: an argument can't be read
--   unreadable: a key has another type
if not string.find(kind, '^[%w_.-]+$') or not (at_once == '' or at_once == '-' or string.find(at_once, '^%d+$') and #at_once <= 9) then
  return { 'bad' }
end
if type(redis.pcall('HLEN', limits_key())) ~= 'number' then return { 'unreadable' } end
local name = 'limit:' .. kind .. ':' .. group
local answer, changes = check_change(name, seen, operation)
if answer then return answer end

local field = group ~= '' and 'group:' .. kind .. ':' .. group or 'kind:' .. kind
local before = redis.call('HGET', limits_key(), field) or ''
if at_once ~= '' then
  redis.call('HSET', limits_key(), field, at_once)
elseif before ~= '' then
  redis.call('HDEL', limits_key(), field) -- If no worker has published a limit of its handler yet, new runs wait for it.
end
mark_limited(kind)
local word = before == at_once and 'again' or 'ok'
remember_change(name, operation, word, changes)
return { word }
