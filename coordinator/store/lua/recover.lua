-- recover: a coordinator takes a batch of an interrupted worker's runs and puts them back.
-- Protects: nothing is taken from a worker whose lease holds, or during a hold; what is taken can't be written by its old owner.
-- ARGV: now, lock, token, worker, tick, batch, jitter
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, judge, recover
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Unconfirmed: what is not recovered is found again; the claim that follows waits
-- Answers: ok, unlocked, gone, alive, held
local clock = server_ms(now)
if redis.call('GET', lock_key(lock)) ~= token then return { 'unlocked' } end
local hold_until = judge(clock, tonumber(tick))
local deadline = redis.call('ZSCORE', workers_key(), worker)
if not deadline then return { 'gone' } end
local known = fields(worker_key(worker), 'condemned', 'blame') or {}
local condemned = known[1]
if not condemned then
  if tonumber(deadline) > clock then return { 'alive' } end
  if clock < hold_until then return { 'held' } end
  -- a beat that was on its way when the server stood still is carried out just after the hold began
  condemned = tonumber(deadline) < hold_until + tonumber(tick) and 'excused' or 'struck'
end

condemn(worker, condemned)
-- abandon leaves whom to blame, if only to say that it was nobody
local why = known[2] and 'its process died' or condemned == 'excused' and 'its lease ran out in an outage' or 'its lease ran out'
return recover_batch(worker, clock, batch, condemned == 'excused', known[2] or '', jitter, why)
