-- back_off: prevent calls of a rate from starting for a given time, because the called service has asked for it.
-- Protects: a shorter back-off does not end a longer one; a call that arrives when its request has ended changes nothing.
-- Role: worker
-- Keys: bucket, holders, namespace, rates, turns
-- ARGV: now, worker, name, number, pause
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker in the partition of the name
--   name: name of the rate
--   number: number of the request whose call the service has refused
--   pause: ms for which no call starts
-- Flags: allow-oom
-- Uses: time, calls, rates
-- Answers: ok, over, unreadable
--   over: the request has ended
local clock = server_ms(now)
local rate = read_rate(name) or { speed = 0 }
local bucket = read_bucket(name, rate.speed, clock, worker)
if not bucket then return { 'unreadable' } end
if not redis.call('ZSCORE', holders_key(name), worker .. '-' .. number) then return { 'over' } end

if clock + tonumber(pause) > bucket.resumes then bucket.resumes, bucket.pause = clock + tonumber(pause), tonumber(pause) end
write_bucket(name, bucket, rate.speed, clock, worker)
return { 'ok' }
