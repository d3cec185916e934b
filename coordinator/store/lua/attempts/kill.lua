-- kill: store the error with which a run fails because of its deadline. The owner then fails the run. Every script that takes the
-- run from its owner fails it too.
-- Protects: only the owner kills the run; after the kill the run may still complete, but it is never requeued.
-- Role: worker
-- Keys: run
-- ARGV: id, token, error
--   id: id of the run
--   token: the token of the run's owner
--   error: the error with which the run fails, encoded
-- Flags: allow-oom
-- Answers: ok, fenced
local owner_token, kill = read_fields(run_key(id), 'token', 'kill')
if owner_token ~= token then return { 'fenced' } end

redis.call('HSET', run_key(id), 'kill', kill or error) -- The first error stays.
return { 'ok' }
