-- extend: gives a run more time before its soft deadline; remembered until it ends.
-- Protects: only the owner extends, and an extension that is sent twice or late counts once.
-- ARGV: id, token, number, ms
-- Flags: allow-oom
-- Uses: run
-- Answers: ok, fenced
-- number counts the run's extensions, with this one
local v = fields(run_key(id), 'token', 'spent')
if not v or v[1] ~= token then return { 'fenced' } end
local spent = read_spent(v[2])

if tonumber(number) > spent.extensions then
  spent.extensions, spent.extended = tonumber(number), spent.extended + tonumber(ms)
end
redis.call('HSET', run_key(id), 'spent', write_spent(spent))
return { 'ok' }
