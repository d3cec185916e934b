-- join: registers a worker in this partition.
-- Protects: only join creates an entry, and never one that was swept: a late join answers gone.
-- ARGV: now, birth, worker, lease, host, pid, started, fleet, code, slots, routes, mark
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: the first claim of the worker waits
-- Answers: ok, gone, stranger
if birth ~= '' and redis.call('HGET', namespace_key(), 'birth') ~= birth then return { 'stranger' } end
local clock = server_ms(now)
local known = redis.call('HMGET', worker_key(worker), 'lease', 'condemned')
local entered = redis.call('ZSCORE', workers_key(), worker)
if known[2] or (known[1] and not entered) then return { 'gone' } end

if not known[1] then
  redis.call('HSET', worker_key(worker), 'lease', lease, 'host', host, 'pid', pid, 'started', started, 'fleet', fleet, 'code',
    code, 'slots', slots, 'routes', routes, 'joined', int(clock), 'claim', '0', 'floor', '0', 'mark', mark)
end
redis.call('ZADD', workers_key(), int(clock + tonumber(lease)), worker)
return { 'ok' }
