-- unpause: allow the claims of a queue or a kind again, and ring the bells of its routes.
-- Protects: a worker may have taken the token of a bell while nothing could be claimed, so the bell is rung without waiting for
-- the next ring of a coordinator.
-- Role: producer
-- Keys: bell, paused, ready, routes, suspect, suspect_bell
-- ARGV: name, most
--   name: queue:<name> or kind:<name>
--   most: the largest number of routes to look at
-- Flags: allow-oom
-- Uses: queue
-- Answers: ok, again
--   again: it was not paused
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
