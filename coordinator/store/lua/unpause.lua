-- unpause: a queue or a kind is claimed again, and who waits for its lines is rung.
-- Protects: a bell that was taken while nothing could be claimed costs no second.
-- ARGV: name, most
-- Flags: allow-oom
-- Uses: queue
-- Answers: ok, again
local was = redis.call('SREM', paused_key(), name)
for _, route in ipairs(redis.call('SRANDMEMBER', routes_key(), most)) do
  local queue, kind = string.match(route, '^([^:]+):(.+)@%d+$')
  if name == 'queue:' .. (queue or '') or name == 'kind:' .. (kind or '') then
    if redis.call('EXISTS', ready_key(route)) == 1 then ring(bell_key(route)) end
    if redis.call('EXISTS', suspect_key(route)) == 1 then ring(suspect_bell_key(route)) end
  end
end
if was == 0 then return { 'again' } end
return { 'ok' }
