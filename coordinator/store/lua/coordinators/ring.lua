-- ring: ring the bells of routes in which runs wait, and forget routes without runs.
-- Protects: if the token of a bell is lost with the worker that took it, its runs wait for a second instead of forever.
-- Role: worker, coordinator
-- Keys: bell, ready, routes, suspect, suspect_bell
-- ARGV: most
--   most: the largest number of routes to check in this call
-- Flags: allow-oom
-- Uses: queue
-- Unconfirmed: bells are rung again each second
-- Answers: ok
--   ok: with the number of routes in which runs wait
local rung = 0
for _, route in ipairs(redis.call('SRANDMEMBER', routes_key(), most)) do
  local ready = redis.call('EXISTS', ready_key(route)) == 1
  local suspect = redis.call('EXISTS', suspect_key(route)) == 1
  if ready then ring(bell_key(route)) end
  if suspect then ring(suspect_bell_key(route)) end
  if ready or suspect then rung = rung + 1 else redis.call('SREM', routes_key(), route) end
end
return { 'ok', rung }
