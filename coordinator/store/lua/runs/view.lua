-- view: answer the fields of a run from which `coordinator show` and other views are made.
-- Role: producer, read-only
-- Keys: admitted, ckpt, delayed, effects, joins, limits, line, namespace, pace, paused, ready, results, run, signals
-- Keys: starting, waiting, worker, workers
-- ARGV: id
--   id: id of the run
-- Flags: no-writes
-- Uses: time, checkpoint, waiting, spend, children, pace
-- Answers: ok, missing
--   ok: with 12 values: (1) the run's fields; (2) the head of its checkpoint; (3) the names of its phases; (4) before: the number of
--     runs before it in its ready queue, -1 if it is not queued; (5) able: the number of workers that listen to its route; (6) paused:
--     queue or kind, if one of them is paused; (7) due: when it is due; (8) known: the number of workers that know its queue and kind
--     at any schema; (9) the topics of signals that it has not received, each with their number; (10) the children that it waits for:
--     their number, how many have ended, how many it needs, when a coordinator checks the run, and a list for some of the children
--     that have not ended, with id, status, route, and the values before, able, paused, due, known and line of the child; (11) the
--     fields of its effects, each as begun:<name> or done:<name>; (12) line: its place in the line of its group, an empty list for a
--     run that does not wait for a place: the number of runs before it, the number of places that are taken, the limit ('-': none;
--     empty: not known), the group, its rate of starts (empty: none), the ms until the rate allows the next start (empty: not known),
--     and the ms since the run entered the line
local MOST_OPEN_CHILDREN, MOST_LOOKS = 5, 250
local fields = redis.pcall('HGETALL', run_key(id))
if fields.err or #fields == 0 then return { 'missing' } end
local run = {}
for i = 1, #fields, 2 do run[fields[i]] = fields[i + 1] end

-- Add the code version of the run's owner, or of the worker that completed the run.
local owner = string.match(run.token or run.status == COMPLETED and run.last or '', '^%d+%-%d+%-(%S+)')
local code, loading, limited = unpack(owner and redis.pcall('HMGET', worker_key(owner), 'code', 'loading', 'limited') or {})
if type(code) == 'string' then
  fields[#fields + 1] = 'code'
  fields[#fields + 1] = code
end
-- Add how many loads have failed while the owner is loading the checkpoint, and the limit for which a call of the handler waits.
for field, entries in pairs({ loading = loading, limited = limited }) do
  entries = ' ' .. (type(entries) == 'string' and entries or '')
  local _, colon = string.find(entries, ' ' .. id .. ':', 1, true)
  local value = colon and string.match(entries, '^%S+', colon + 1)
  if value and run.token then
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
end

-- Add the budget that workers have published for the kind of the run.
local _, own_kind = string.match(run.route or '', ROUTE_PARTS)
local budget = own_kind and redis.pcall('HGET', limits_key(), 'budget:' .. own_kind)
if type(budget) == 'string' then
  fields[#fields + 1] = 'budget'
  fields[#fields + 1] = budget
end

-- Return the place of a run in the line of its group, as the head describes; an empty list if it is in no line.
local function explain_line(id, group)
  local rank = group and redis.pcall('ZRANK', line_key(group), id)
  if type(rank) ~= 'number' then return {} end
  local score, held = redis.call('ZSCORE', line_key(group), id), redis.call('HGET', run_key(id), 'held')
  -- A run that was woken has an older score. An earlier `held` is left from a wait before.
  local since = math.max(tonumber(score) % PRIORITY_STEP, tonumber(held or 0) or 0)
  local limit, rate = limit_of(group)
  local taken, clock = redis.pcall('SCARD', admitted_key(group)), server_ms('')
  local pace = rate and read_pace(group, rate, clock)
  local start = pace and next_start(pace)
  return {
    rank, type(taken) == 'number' and taken or 0, limit == FAR_FUTURE and '-' or limit and int(limit) or '', group, rate or '',
    start and int(math.max(0, start - clock)) or '', int(math.max(0, clock - since)),
  }
end

-- Return the values before, able, paused, due, known and line of a run, as the head describes them. They show why a queued run waits.
local function explain_queued(id, status, route, group)
  local before, able, known, paused, due = -1, 0, 0, '', redis.call('ZSCORE', delayed_key(), id) or ''
  if status ~= QUEUED or not route then return before, able, paused, due, known, {} end
  local rank = redis.pcall('ZRANK', ready_key(route), id)
  if type(rank) == 'number' then before = rank end
  local queue, kind = string.match(route, ROUTE_PARTS)
  queue, kind = queue or '', kind or ''
  local any_schema = string.format(' %s:%s@', queue, kind)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers_key(), 1, '+inf', 'LIMIT', 0, 1000)) do
    local routes = ' ' .. (redis.call('HGET', worker_key(worker), 'routes') or '') .. ' '
    if string.find(routes, ' ' .. route .. ' ', 1, true) then able = able + 1 end
    if string.find(routes, any_schema, 1, true) then known = known + 1 end
  end
  if redis.call('SISMEMBER', paused_key(), 'queue:' .. queue) == 1 then paused = 'queue' end
  if redis.call('SISMEMBER', paused_key(), 'kind:' .. kind) == 1 then paused = 'kind' end
  return before, able, paused, due, known, explain_line(id, group)
end

-- Return the facts about the children that the run waits for, as the head describes; an empty list if it waits for none.
local function describe_children()
  local condition = run.status == WAITING and read_wait(run)
  local base, need
  for step, number in pairs(condition and condition.steps or {}) do base, need = step, number end
  local spawned, ended = read_join(id, base or '')
  if not spawned then return {} end
  local open = {}
  local function look(index)
    if #open >= MOST_OPEN_CHILDREN or redis.pcall('HEXISTS', results_key(id), base .. ':' .. int(index)) ~= 0 then return end
    local child = child_id(base, index)
    local route, group, status = read_fields(run_key(child), 'route', 'group', 'status')
    if status then open[#open + 1] = { child, status, route or '', explain_queued(child, status, route, group) } end
  end
  -- Children end nearly in the order of their numbers. So among many children, the last ones are looked at too.
  for index = 0, math.min(spawned, MOST_LOOKS) - 1 do look(index) end
  for index = math.max(MOST_LOOKS, spawned - MOST_LOOKS), spawned - 1 do look(index) end
  return { int(spawned), int(ended), int(need), redis.call('ZSCORE', waiting_key(), id) or '', open }
end

local before, able, paused, due, known, held = explain_queued(id, run.status, run.route, run.group)
local phases = {}
local names = redis.pcall('HKEYS', ckpt_key(id))
if not names.err then
  for i = 1, #names do
    if string.sub(names[i], 1, 6) == 'phase:' then phases[#phases + 1] = names[i] end
  end
end
local head = redis.pcall('HGET', ckpt_key(id), 'head')
local effects = run.beside and string.find(run.beside, 'e', 1, true) and redis.pcall('HKEYS', effects_key(id)) or {}
return { 'ok', fields, type(head) == 'string' and head or '', phases, before, able, paused, due, known, run.beside and count_unreceived(id) or {},
  describe_children(), effects.err and {} or effects, held }
