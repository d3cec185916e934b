-- pause: nothing more of a queue or a kind is claimed in this partition. What runs goes on.
-- ARGV: name
-- Flags: allow-oom
-- Answers: ok, again
if redis.call('SADD', paused_key(), name) == 0 then return { 'again' } end
return { 'ok' }
