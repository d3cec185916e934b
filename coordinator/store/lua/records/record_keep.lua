-- record_keep: renew the lease of an owner, or end the lease, so that other processes can take the owner's runs immediately.
-- Role: worker
-- Keys: namespace, record_owners
-- ARGV: now, owner, mode
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   owner: the process that executes the run, as "<nonce>-<lease in ms>"
--   mode: renew or leave
-- Flags: allow-oom
-- Uses: time, owner
-- Unconfirmed: if a failover loses a renewal, the owner's next call renews the lease again
-- Answers: ok
local clock = server_ms(now)
redis.call('ZREMRANGEBYSCORE', record_owners_key(), '-inf', int(clock - SEEN_MS))
if mode == 'leave' then
  redis.call('ZREM', record_owners_key(), owner)
else
  renew_lease(owner, clock)
end
return { 'ok' }
