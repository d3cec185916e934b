-- join: register a worker in this partition.
-- Protects: only join creates the entry of a worker, and never for a worker that has left or was condemned.
-- Role: worker
-- Keys: limits, namespace, watch, worker, workers
-- ARGV: now, birth, worker, lease, host, pid, started, fleet, code, slots, routes, mark, knows, limits, budgets
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   birth: the birth mark of the namespace that the caller knows; empty: it is not checked
--   worker: id of the worker
--   lease: ms for which the lease holds
--   host: name of the host on which the process runs
--   pid: id of the process
--   started: when the process started
--   fleet: name of the fleet
--   code: version of the worker's code
--   slots: number of handlers that may run at the same time
--   routes: the routes that the worker listens to, separated by spaces
--   mark: the mark of its process: boot id, pid namespace, pid and start time
--   knows: names of features that its version knows, separated by spaces
--   limits: the limits of its handlers, each as <kind>=<number> or <kind>=- for none, separated by spaces
--   budgets: the budgets of its handlers, each as <kind>=<budget> or <kind>=- for none, separated by spaces
-- Flags: allow-oom
-- Uses: time, limited, published
-- Unconfirmed: the worker's first claim waits for replicas
-- Answers: ok, gone, mismatch
--   mismatch: the stored birth mark of the namespace is another one
if birth ~= '' and redis.call('HGET', namespace_key(), 'birth') ~= birth then return { 'mismatch' } end
local clock = server_ms(now)
local known_lease, condemned = unpack(redis.call('HMGET', worker_key(worker), 'lease', 'condemned'))
local listed = redis.call('ZSCORE', workers_key(), worker)
if condemned or (known_lease and not listed) then return { 'gone' } end

if not known_lease then
  redis.call('HSET', worker_key(worker), 'lease', lease, 'host', host, 'pid', pid, 'started', started, 'fleet', fleet, 'code',
    code, 'slots', slots, 'routes', routes, 'joined', int(clock), 'claim', '0', 'floor', '0', 'mark', mark, 'knows', knows,
    'limits', limits)
end
redis.call('ZADD', workers_key(), int(clock + tonumber(lease)), worker)
-- A coordinator checks the leases at every second tick while none can expire soon. The lease of this worker may be shorter, so from now
-- on a gap counts as if coordinators checked at each tick.
redis.pcall('HDEL', watch_key(), 'rest')
publish_joined_limits(limits)
-- The budget of a handler is only displayed, so the worker that joined last decides.
for kind, budget in string.gmatch(budgets, '([^%s=]+)=(%S+)') do
  if budget == '-' then
    redis.pcall('HDEL', limits_key(), 'budget:' .. kind)
  else
    redis.pcall('HSET', limits_key(), 'budget:' .. kind, budget)
  end
end
return { 'ok' }
