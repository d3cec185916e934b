-- wait: tells how a run ended, or notes who is to be woken when it does.
-- Protects: an ending between the look and the note is never missed: both are one step.
-- ARGV: id, client, ttl
-- Flags: allow-oom
-- Uses: run
-- Unconfirmed: who waits asks again every 5 s
-- Answers: ended, open, missing
-- 'bare' is a run of which no result was kept: its retention was 0.
local v = fields(run_key(id), 'status', 'result', 'error', 'reason', 'ended')
if not v or not v[1] then return { 'missing' } end
if v[1] == 'completed' or v[1] == 'failed' or v[1] == 'dead' or v[1] == 'cancelled' then
  local bare = redis.call('HEXISTS', run_key(id), 'spec') == 0 and 'bare' or ''
  return { 'ended', v[1], v[2] or '', v[3] or '', v[4] or '', v[5] or '', bare }
end

if redis.call('SCARD', waiters_key(id)) < 1000 then redis.call('SADD', waiters_key(id), client) end -- the others ask again by themselves
redis.call('PEXPIRE', waiters_key(id), ttl)
redis.call('HSET', run_key(id), 'waited', '1') -- only for such a run an ending looks for who waits: most have nobody
return { 'open', v[1] }
