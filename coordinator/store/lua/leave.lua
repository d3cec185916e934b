-- leave: a worker that holds nothing goes; what it still owns is told instead.
-- Protects: an entry never goes while it owns runs; a tombstone keeps late calls out.
-- ARGV: worker
-- Flags: allow-oom
-- Uses: run
-- Unconfirmed: an entry that comes back runs out with its lease
-- Answers: ok, owns
local ids = redis.call('SRANDMEMBER', owned_key(worker), 200)
if #ids > 0 then
  local owned = {}
  for i = 1, #ids do
    local run = fields(run_key(ids[i]), 'token')
    local token = run and run[1]
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
redis.call('DEL', inbox_key(worker))
redis.call('HSET', worker_key(worker), 'lease', '0')
redis.call('PEXPIRE', worker_key(worker), 60000)
return { 'ok' }
