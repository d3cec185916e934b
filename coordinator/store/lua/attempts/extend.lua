-- extend: give a run more time before its soft deadline. The extension counts until the run ends.
-- Protects: only the owner of the run extends it; an extension that is sent twice or late counts once.
-- Role: worker
-- Keys: run
-- ARGV: id, token, number, ms
--   id: id of the run
--   token: the token of the run's owner
--   number: number of the run's extensions, including this one
--   ms: the additional time
-- Flags: allow-oom
-- Answers: ok, fenced
local owner_token, text = read_fields(run_key(id), 'token', 'spent')
if owner_token ~= token then return { 'fenced' } end
local spent = read_spent(text)

if tonumber(number) > spent.extensions then
  spent.extensions, spent.extended = tonumber(number), spent.extended + tonumber(ms)
end
redis.call('HSET', run_key(id), 'spent', write_spent(spent))
return { 'ok' }
