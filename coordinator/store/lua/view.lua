-- view: everything that is shown of a run.
-- ARGV: id
-- Flags: no-writes
-- Answers: ok, missing
local run = redis.pcall('HGETALL', run_key(id))
if run.err or #run == 0 then return { 'missing' } end
local of = {}
for i = 1, #run, 2 do of[run[i]] = run[i + 1] end

-- Which code its owner runs, or who completed it ran.
local worker = string.match(of.token or of.status == 'completed' and of.last or '', '^%d+%-%d+%-(%S+)')
local code = worker and redis.pcall('HGET', worker_key(worker), 'code')
if type(code) == 'string' then
  run[#run + 1] = 'code'
  run[#run + 1] = code
end

-- Why a queued run still waits: how many are before it, who could take it, who knows its kind at whatever schema, what is paused.
local before, able, known, paused = -1, 0, 0, ''
if of.status == 'queued' and of.route then
  local rank = redis.pcall('ZRANK', ready_key(of.route), id)
  if type(rank) == 'number' then before = rank end
  local queue, kind = string.match(of.route, '^([^:]+):(.+)@%d+$')
  local line = string.format(' %s:%s@', queue or '', kind or '')
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers_key(), 1, '+inf', 'LIMIT', 0, 1000)) do
    local routes = ' ' .. (redis.call('HGET', worker_key(worker), 'routes') or '') .. ' '
    if string.find(routes, ' ' .. of.route .. ' ', 1, true) then able = able + 1 end
    if string.find(routes, line, 1, true) then known = known + 1 end
  end
  if redis.call('SISMEMBER', paused_key(), 'queue:' .. (queue or '')) == 1 then paused = 'queue' end
  if redis.call('SISMEMBER', paused_key(), 'kind:' .. (kind or '')) == 1 then paused = 'kind' end
end
local due = redis.call('ZSCORE', delayed_key(), id) or ''
local ckpt = {}
local names = redis.pcall('HKEYS', ckpt_key(id))
if not names.err then
  for i = 1, #names do
    if string.sub(names[i], 1, 6) == 'phase:' then ckpt[#ckpt + 1] = names[i] end
  end
end
local head = redis.pcall('HGET', ckpt_key(id), 'head')
return { 'ok', run, type(head) == 'string' and head or '', ckpt, before, able, paused, due, known }
