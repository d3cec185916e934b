-- Cancel a run that has not ended. A waiting run ends immediately. For a running run, ask its owner to stop it.
local function cancel_run(id, run, counters, clock, grace, reason)
  if run.status == RUNNING then
    local worker = worker_of(run.token)
    redis.call('HSET', run_key(id), 'cancel', run.cancel or int(clock))
    redis.pcall('HSET', worker_key(worker), 'cancel:' .. id, int(clock))
    -- LT: a second request does not give the handler more time.
    redis.pcall('ZADD', deadlines_key(), 'LT', int(clock + tonumber(grace)), 'cancel:' .. id)
    notify(worker, 'cancel ' .. id)
    ring(coordinator_bell_key())
    return
  end
  leave_queues(id, run.route)
  if run.wait then redis.call('HDEL', run_key(id), 'wait') end
  redis.pcall('ZREM', deadlines_key(), 'expire:' .. id)
  end_cancelled(id, run, counters, clock, reason)
end
