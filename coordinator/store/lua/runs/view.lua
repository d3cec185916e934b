-- view: answer the fields of a run from which `coordinator show` and other views are made.
-- Role: producer, read-only
-- Keys: ckpt, delayed, paused, ready, run, signals, worker, workers
-- ARGV: id
--   id: id of the run
-- Flags: no-writes
-- Uses: checkpoint, waiting
-- Answers: ok, missing
--   ok: with the run's fields, the head of its checkpoint, the names of its phases, the number of runs before it in its ready
--     queue (-1 if it is not queued), the number of workers that listen to its route, which of queue and kind is paused, when
--     it is due, the number of workers that know its queue and kind at any schema, and the topics of signals that it has not
--     received, each with their number
local fields = redis.pcall('HGETALL', run_key(id))
if fields.err or #fields == 0 then return { 'missing' } end
local run = {}
for i = 1, #fields, 2 do run[fields[i]] = fields[i + 1] end

-- The code version of the run's owner, or of the worker that completed the run.
local owner = string.match(run.token or run.status == COMPLETED and run.last or '', '^%d+%-%d+%-(%S+)')
local code, loading = unpack(owner and redis.pcall('HMGET', worker_key(owner), 'code', 'loading') or {})
if type(code) == 'string' then
  fields[#fields + 1] = 'code'
  fields[#fields + 1] = code
end
-- How many loads of its checkpoint have failed, while its owner is loading it.
loading = ' ' .. (type(loading) == 'string' and loading or '')
local _, colon = string.find(loading, ' ' .. id .. ':', 1, true)
local failures = colon and string.match(loading, '^%d+', colon + 1)
if failures and run.token then
  fields[#fields + 1] = 'loading'
  fields[#fields + 1] = failures
end

-- Why a queued run still waits.
local before, able, known, paused = -1, 0, 0, ''
if run.status == QUEUED and run.route then
  local rank = redis.pcall('ZRANK', ready_key(run.route), id)
  if type(rank) == 'number' then before = rank end
  local queue, kind = string.match(run.route, ROUTE_PARTS)
  queue, kind = queue or '', kind or ''
  local any_schema = string.format(' %s:%s@', queue, kind)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers_key(), 1, '+inf', 'LIMIT', 0, 1000)) do
    local routes = ' ' .. (redis.call('HGET', worker_key(worker), 'routes') or '') .. ' '
    if string.find(routes, ' ' .. run.route .. ' ', 1, true) then able = able + 1 end
    if string.find(routes, any_schema, 1, true) then known = known + 1 end
  end
  if redis.call('SISMEMBER', paused_key(), 'queue:' .. queue) == 1 then paused = 'queue' end
  if redis.call('SISMEMBER', paused_key(), 'kind:' .. kind) == 1 then paused = 'kind' end
end
local due = redis.call('ZSCORE', delayed_key(), id) or ''
local phases = {}
local names = redis.pcall('HKEYS', ckpt_key(id))
if not names.err then
  for i = 1, #names do
    if string.sub(names[i], 1, 6) == 'phase:' then phases[#phases + 1] = names[i] end
  end
end
local head = redis.pcall('HGET', ckpt_key(id), 'head')
return { 'ok', fields, type(head) == 'string' and head or '', phases, before, able, paused, due, known, run.beside and count_unreceived(id) or {} }
