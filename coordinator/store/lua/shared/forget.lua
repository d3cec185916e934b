-- Removing an ended run with its other keys. Only a tombstone, the run's hash without inputs and result, stays for TOMBSTONE_MS. After
-- that, the key `forgotten` lets enqueue.lua refuse a repetition of the run's enqueue.
local function remember_forgotten(id, run)
  local kept = run.retention and tonumber(run.retention) or WEEK_MS
  local last, ttl = redis.pcall('GET', forgotten_key()), redis.call('PTTL', forgotten_key())
  if type(last) ~= 'string' or last < id then last = id end
  redis.call('SET', forgotten_key(), last, 'PX', int(math.max(kept, ttl, TOMBSTONE_MS)))
end

local function forget(id, run)
  remember_forgotten(id, run)
  drop_checkpoint(id)
  if run.beside then expire_beside(id, run, COMPLETED, 0) end
  redis.call('ZREM', ended_key(run.status), id)
  redis.call('HDEL', run_key(id), 'result', 'error', 'note', 'prev', 'reason', 'story', 'kill', 'killed', 'waited',
    SPEC_FIELDS)
  local ttl = redis.call('PTTL', run_key(id))
  if ttl > TOMBSTONE_MS or ttl < 0 then redis.call('PEXPIRE', run_key(id), TOMBSTONE_MS) end
  local key = run.once and string.match(run.once, '^%S+ (.*)$')
  if not key then return end
  local _, kind = string.match(run.route, ROUTE_PARTS)
  local once = once_key(kind or '', key)
  local named = redis.pcall('GET', once)
  if type(named) == 'string' and string.sub(named, 1, #id) == id then redis.call('DEL', once) end
end
