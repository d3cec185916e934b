-- wait: answer how a run ended. If it has not ended, register a client, which is woken when the run ends.
-- Protects: the check and the registration are one step, so that no ending between them is missed.
-- Role: producer
-- Keys: run, waiters, wake
-- ARGV: id, client, ttl, blocks
--   id: id of the run
--   client: id of the client that waits
--   ttl: ms that the registration is kept
--   blocks: 1 if the client blocks on its wake list next, and asks again afterwards; empty otherwise
-- Flags: allow-oom
-- Unconfirmed: a client that waits asks again every 5 s
-- Answers: ended, open, missing, hinted
--   ended: with status, result, error, reason and time of the end; and 'bare' if no result is kept, because the retention is 0
--   open: with the status
--   hinted: the run has ended or is missing, and the client blocks next: a hint in its wake list ends the block at once
local status, result, error, reason, ended = read_fields(run_key(id), 'status', 'result', 'error', 'reason', 'ended')
if blocks == '1' and (not status or is_ended(status)) then
  redis.pcall('RPUSH', wake_key(client), id)
  redis.call('PEXPIRE', wake_key(client), WAKE_MS)
  return { 'hinted' }
end
if not status then return { 'missing' } end
if is_ended(status) then
  local bare = redis.call('HEXISTS', run_key(id), 'spec') == 0 and 'bare' or ''
  return { 'ended', status, result or '', error or '', reason or '', ended or '', bare }
end

if redis.call('SCARD', waiters_key(id)) < MOST_WAITERS then redis.call('SADD', waiters_key(id), client) end
redis.call('PEXPIRE', waiters_key(id), ttl)
-- Most runs have no client that waits. The script that ends a run looks for such clients only if this field is set.
redis.call('HSET', run_key(id), 'waited', '1')
return { 'open', status }
