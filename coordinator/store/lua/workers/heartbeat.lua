-- heartbeat: renew a worker's lease, answer which of its runs are to be cancelled, and compare the runs that it holds with the
-- runs that it owns.
-- Protects: the lease of a worker that was condemned or removed is never renewed.
-- Role: worker
-- Keys: namespace, owned, run, worker, workers
-- ARGV: now, worker, lease, floor, memory, stuck, loading, limited, compare
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker
--   lease: ms for which the lease holds
--   floor: claims up to this number take nothing: the worker does not wait for them any more
--   memory: the memory of the process in bytes; 0: unknown
--   stuck: ids of runs whose outcome the worker has decided, but whose handlers do not stop, with spaces between them
--   loading: runs whose checkpoints the worker is loading, each as id:failures, with spaces between them
--   limited: runs that wait for the rate of a call, each as id:name:since, with spaces between them
--   compare: 1 if the items are all runs that the worker holds
-- ITEM: id, token
--   id: id of the run
--   token: the token of the run's owner
-- Flags: allow-oom
-- Uses: time, run
-- Unconfirmed: after a lost heartbeat the lease ends earlier, and a worker must keep its runs while replicas are missing
-- Answers: ok, gone
--   ok: with the runs to cancel; ids and tokens of held runs that the worker does not own any more; ids and tokens of owned
--     runs that it does not hold; and when it was asked to drain
local clock = server_ms(now)
local flat, known = redis.call('HGETALL', worker_key(worker)), {}
for i = 1, #flat, 2 do known[flat[i]] = flat[i + 1] end
if known.condemned then return { 'gone' } end
-- ZADD answers 0 for a worker that is not listed, and for a deadline that does not change.
local renewed = redis.call('ZADD', workers_key(), 'XX', 'CH', int(clock + tonumber(lease)), worker) == 1
if not renewed and not redis.call('ZSCORE', workers_key(), worker) then return { 'gone' } end

local changed, removed = {}, {}
local function change(field, value)
  if known[field] == value then return end
  changed[#changed + 1] = field
  changed[#changed + 1] = value
end
if tonumber(floor) > tonumber(known.floor or 0) then change('floor', floor) end
if memory ~= '0' then change('memory', memory) end
for field, value in pairs({ stuck = stuck, loading = loading, limited = limited }) do
  if value ~= '' then change(field, value) elseif known[field] then removed[#removed + 1] = field end
end
if #changed > 0 then redis.call('HSET', worker_key(worker), unpack(changed)) end
if #removed > 0 then redis.call('HDEL', worker_key(worker), unpack(removed)) end

local cancels, lost, strays = {}, {}, {}
for i = 1, #flat, 2 do
  local id = string.match(flat[i], '^cancel:(.+)$')
  if id then cancels[#cancels + 1] = id end
end
if compare == '1' then
  local held = {}
  for i = 1, items do
    local id, token = item(i)
    local owner_token = read_fields(run_key(id), 'token')
    held[id] = true
    if owner_token ~= token then
      lost[#lost + 1] = id
      lost[#lost + 1] = token
    end
  end
  for _, id in ipairs(redis.call('SMEMBERS', owned_key(worker))) do
    local token
    if not held[id] then token = read_fields(run_key(id), 'token') end
    if token and worker_of(token) == worker then
      strays[#strays + 1] = id
      strays[#strays + 1] = token
    end
  end
end
return { 'ok', cancels, lost, strays, known.drain or '' }
