-- pause: stop the claims of a queue or a kind in this partition. Its running runs continue.
-- Role: producer
-- Keys: paused
-- ARGV: name
--   name: queue:<name> or kind:<name>
-- Flags: allow-oom
-- Answers: ok, again
--   again: it was paused before
if redis.call('SADD', paused_key(), name) == 0 then return { 'again' } end
return { 'ok' }
