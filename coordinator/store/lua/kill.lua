-- kill: writes on a run why the critic ends it. Its owner then fails it; whoever else takes it from its owner does so too.
-- Protects: only the owner kills; from here on the run can complete or end otherwise, but never goes back into a line.
-- ARGV: id, token, error
-- Flags: allow-oom
-- Uses: run
-- Answers: ok, fenced
local v = fields(run_key(id), 'token', 'kill')
if not v or v[1] ~= token then return { 'fenced' } end

redis.call('HSET', run_key(id), 'kill', v[2] or error) -- the first reason stays
return { 'ok' }
