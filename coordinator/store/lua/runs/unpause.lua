-- unpause: let workers claim the runs of a queue or a kind again, and ring the bells of its routes.
-- Protects: a worker may have taken the token of a bell while the runs could not be claimed, so this script rings the bell instead
-- of waiting until a coordinator rings it. A call that is sent twice or late does not undo a later pause.
-- Role: producer
-- Keys: bell, paused, pauses, ready, routes, suspect, suspect_bell
-- ARGV: name, seen, operation, most
--   name: queue:<name> or kind:<name>
--   seen: the text in the last answer 'changed'; empty: the caller has none yet, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
--   most: the largest number of routes to examine
-- Flags: allow-oom
-- Uses: queue, pause
-- Answers: ok, again, changed
--   again: the queue or kind was not paused
--   changed: with "<operation of the last change>@<the server's time in ms>"; the caller sends the change again with it as seen
local answer, changes = check_change(name, seen, operation)
if answer then return answer end

local word = redis.call('SREM', paused_key(), name) == 1 and 'ok' or 'again'
remember_change(name, operation, word, changes)
for _, route in ipairs(redis.call('SRANDMEMBER', routes_key(), most)) do
  local queue, kind = string.match(route, ROUTE_PARTS)
  if name == 'queue:' .. (queue or '') or name == 'kind:' .. (kind or '') then
    if redis.call('EXISTS', ready_key(route)) == 1 then ring(bell_key(route)) end
    if redis.call('EXISTS', suspect_key(route)) == 1 then ring(suspect_bell_key(route)) end
  end
end
return { word }
