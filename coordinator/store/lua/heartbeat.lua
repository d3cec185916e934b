-- heartbeat: renews a worker's lease, tells what it is asked for, and compares what it holds with what it owns.
-- Protects: a swept or condemned worker is never renewed.
-- ARGV: now, worker, lease, floor, memory, compare
-- ITEM: id, token
-- Flags: allow-oom
-- Uses: time, run
-- Unconfirmed: a lost beat costs a lease at most, and a worker without replicas must keep its runs
-- Answers: ok, gone
local clock = server_ms(now)
local known = redis.call('HMGET', worker_key(worker), 'condemned', 'floor', 'drain')
if known[1] or not redis.call('ZSCORE', workers_key(), worker) then return { 'gone' } end

redis.call('ZADD', workers_key(), int(clock + tonumber(lease)), worker)
if tonumber(floor) > tonumber(known[2] or 0) then redis.call('HSET', worker_key(worker), 'floor', floor) end
if memory ~= '0' then redis.call('HSET', worker_key(worker), 'memory', memory) end

local cancels, lost, strays = {}, {}, {}
for _, field in ipairs(redis.call('HKEYS', worker_key(worker))) do
  local id = string.match(field, '^cancel:(.+)$')
  if id then cancels[#cancels + 1] = id end
end
if compare == '1' then
  local held = {}
  for i = 1, items do
    local id, token = item(i)
    local run = fields(run_key(id), 'token')
    held[id] = true
    if not run or run[1] ~= token then
      lost[#lost + 1] = id
      lost[#lost + 1] = token
    end
  end
  for _, id in ipairs(redis.call('SMEMBERS', owned_key(worker))) do
    local run = not held[id] and fields(run_key(id), 'token')
    if run and run[1] and worker_of(run[1]) == worker then
      strays[#strays + 1] = id
      strays[#strays + 1] = run[1]
    end
  end
end
return { 'ok', cancels, lost, strays, known[3] or '' }
