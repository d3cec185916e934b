-- leave: remove a worker that owns no runs; otherwise answer the runs that it still owns.
-- Protects: the entry of a worker stays while it owns runs; a tombstone refuses its late calls; no external call of a worker that has
-- left holds a place.
-- Role: worker
-- Keys: holders, inbox, limits, namespace, owned, rates, run, turns, worker, workers
-- ARGV: worker
--   worker: id of the worker
-- Flags: allow-oom
-- Uses: run, queue, limited, published, calls
-- Unconfirmed: an entry that comes back after a failover expires with its lease
-- Answers: ok, owns
--   owns: with the ids and tokens of the runs
local ids = redis.call('SRANDMEMBER', owned_key(worker), 200)
if #ids > 0 then
  local owned = {}
  for i = 1, #ids do
    local token = read_fields(run_key(ids[i]), 'token')
    if token and worker_of(token) == worker then
      owned[#owned + 1] = ids[i]
      owned[#owned + 1] = token
    else
      redis.call('SREM', owned_key(worker), ids[i])
    end
  end
  if #owned > 0 or redis.call('SCARD', owned_key(worker)) > 0 then return { 'owns', owned } end
end

redis.call('ZREM', workers_key(), worker)
publish_remaining_limits()
forget_calls(worker)
redis.call('DEL', inbox_key(worker))
redis.call('HSET', worker_key(worker), 'lease', '0')
redis.call('PEXPIRE', worker_key(worker), TOMBSTONE_MS)
return { 'ok' }
