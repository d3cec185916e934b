-- ring: rings where runs wait and no bell is set, and forgets the routes that are empty.
-- Protects: a bell that was lost with the worker who took it costs a second and not a run.
-- ARGV: most
-- Flags: allow-oom
-- Uses: queue
-- Unconfirmed: a bell is rung again each second
-- Answers: ok
local rung = 0
for _, route in ipairs(redis.call('SRANDMEMBER', routes_key(), most)) do
  local ready = redis.call('EXISTS', ready_key(route)) == 1
  local suspect = redis.call('EXISTS', suspect_key(route)) == 1
  if ready then ring(bell_key(route)) end
  if suspect then ring(suspect_bell_key(route)) end
  if ready or suspect then rung = rung + 1 else redis.call('SREM', routes_key(), route) end
end
return { 'ok', rung }
