-- abandon: a supervisor gives up a child that is gone, and takes the first batch of its runs at once.
-- Protects: a worker that was given up never joins, claims or renews again, also where it had not joined yet.
-- ARGV: now, worker, batch, blame, jitter
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, recover
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Unconfirmed: what is not given up is found again; the claim that follows waits
-- Answers: ok
-- blame names the only run that gets a strike: the one that blocked the process's event loop, or nobody; empty: each one does
local clock = server_ms(now)

-- who gave it up first knows why: whoever goes on with it may only see that it is gone
redis.call('HSETNX', worker_key(worker), 'blame', blame)
local blamed = redis.call('HGET', worker_key(worker), 'blame')
condemn(worker, 'struck')
return recover_batch(worker, clock, batch, false, blamed, jitter, 'its process died')
