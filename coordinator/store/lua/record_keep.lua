-- record_keep: renews the lease of an owner, or gives it up: then what it held can be taken at once.
-- ARGV: now, owner, mode
-- Flags: allow-oom
-- Uses: time, owner
-- Unconfirmed: a lost renewal costs a lease at most
-- Answers: ok
-- mode is 'renew' or 'leave'
local clock = server_ms(now)
redis.call('ZREMRANGEBYSCORE', record_owners_key(), '-inf', int(clock - 60000))
if mode == 'leave' then
  redis.call('ZREM', record_owners_key(), owner)
else
  renew(owner, clock)
end
return { 'ok' }
