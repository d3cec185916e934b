-- drain: ask a worker to drain, or record that it drains. The worker learns of it from the reply to its heartbeat, and status
-- displays show it.
-- Protects: nothing is written for a worker that is gone.
-- Role: worker
-- Keys: inbox, namespace, worker, workers
-- ARGV: now, worker
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker
-- Flags: allow-oom
-- Uses: time, queue
-- Answers: ok, gone
if redis.call('HGET', worker_key(worker), 'condemned') or not redis.call('ZSCORE', workers_key(), worker) then return { 'gone' } end

if redis.call('HSETNX', worker_key(worker), 'drain', int(server_ms(now))) == 0 then return { 'ok' } end
notify(worker, 'drain')
return { 'ok' }
