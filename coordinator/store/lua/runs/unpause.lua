-- unpause: let workers claim the runs of a queue or a kind again, and ring the bells of its routes.
-- Protects: a worker may have taken the token of a bell while the runs could not be claimed, so this script rings the bell instead
-- of waiting until a coordinator rings it.
-- Role: producer
-- Keys: bell, paused, ready, routes, suspect, suspect_bell
-- ARGV: name, most
--   name: queue:<name> or kind:<name>
--   most: the largest number of routes to check in this call
-- Flags: allow-oom
-- Uses: queue
-- Answers: ok, again
--   again: the queue or kind was not paused
local removed = redis.call('SREM', paused_key(), name)
for _, route in ipairs(redis.call('SRANDMEMBER', routes_key(), most)) do
  local queue, kind = string.match(route, ROUTE_PARTS)
  if name == 'queue:' .. (queue or '') or name == 'kind:' .. (kind or '') then
    if redis.call('EXISTS', ready_key(route)) == 1 then ring(bell_key(route)) end
    if redis.call('EXISTS', suspect_key(route)) == 1 then ring(suspect_bell_key(route)) end
  end
end
if removed == 0 then return { 'again' } end
return { 'ok' }
