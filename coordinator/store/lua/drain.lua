-- drain: a worker is to drain, or does. Its heartbeats tell it, and it is shown.
-- Protects: nothing is written of a worker that is gone.
-- ARGV: now, worker
-- Flags: allow-oom
-- Uses: time
-- Answers: ok, gone
if redis.call('HGET', worker_key(worker), 'condemned') or not redis.call('ZSCORE', workers_key(), worker) then return { 'gone' } end

if redis.call('HSETNX', worker_key(worker), 'drain', int(server_ms(now))) == 0 then return { 'ok' } end
redis.call('RPUSH', inbox_key(worker), 'drain')
redis.call('LTRIM', inbox_key(worker), -1000, -1)
redis.call('PEXPIRE', inbox_key(worker), 60000)
return { 'ok' }
