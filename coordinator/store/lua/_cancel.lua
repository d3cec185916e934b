-- Asking a run that has not ended to end: one that waits ends at once, the owner of a running one is told.
local function cancel_run(id, run, counters, clock, grace, reason)
  if run.status == 'running' then
    local worker = worker_of(run.token)
    redis.call('HSET', run_key(id), 'cancel', run.cancel or int(clock))
    redis.call('HSET', worker_key(worker), 'cancel:' .. id, int(clock))
    redis.call('ZADD', deadlines_key(), 'LT', int(clock + tonumber(grace)), 'cancel:' .. id) -- asking again gives no more time
    redis.call('RPUSH', inbox_key(worker), 'cancel ' .. id)
    redis.call('LTRIM', inbox_key(worker), -1000, -1)
    redis.call('PEXPIRE', inbox_key(worker), 60000)
    ring(coordinator_bell_key())
    return
  end
  redis.call('ZREM', ready_key(run.route), id)
  redis.call('ZREM', suspect_key(run.route), id)
  redis.call('ZREM', delayed_key(), id)
  redis.call('ZREM', deadlines_key(), 'expire:' .. id)
  end_cancelled(id, run, counters, clock, reason)
end
