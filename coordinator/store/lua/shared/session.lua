-- Changes of a session, and the operations that made them: a change that is sent again is recognised by its operation.

-- Check the types of the keys of a session. If one is wrong, the script fails here, before its first write.
local function check_session(session)
  redis.call('LLEN', session_key(session))
  redis.call('HLEN', session_operations_key(session))
end

-- Return the answer of an operation that was carried out before; nil if there was none.
local function answer_again(session, operation)
  local key = session_operations_key(session)
  local found = redis.call('HGET', key, operation)
  if not found then return nil end
  redis.call('HSET', key, operation, found) -- so that a WAIT for replicas covers the first call
  return string.sub(found, string.find(found, ' ', 1, true) + 1)
end

-- Remember an operation with its answer, and forget old operations now and then.
local function remember_operation(session, operation, answer, clock)
  local key = session_operations_key(session)
  redis.call('HSET', key, operation, int(clock) .. ' ' .. answer)
  redis.call('PEXPIRE', key, SESSION_OPERATIONS_MS)
  if redis.call('HLEN', key) % SESSION_OPERATIONS_TRIM ~= 0 then return end
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], '^%d+'))
    if at <= clock - SESSION_OPERATIONS_MS then redis.call('HDEL', key, all[i]) end
  end
end
