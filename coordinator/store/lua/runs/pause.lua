-- pause: make workers stop claiming the runs of a queue or a kind in this partition. Runs that are running continue.
-- Role: producer
-- Keys: paused
-- ARGV: name
--   name: queue:<name> or kind:<name>
-- Flags: allow-oom
-- Answers: ok, again
--   again: the queue or kind was paused before
if redis.call('SADD', paused_key(), name) == 0 then return { 'again' } end
return { 'ok' }
