-- join_children: announce the children that a step of a run is about to enqueue and to wait for, and drop other steps.
-- Protects: only the owner announces; a child is created only for a step that its parent has announced and not dropped. After a
-- revive the step keeps the results of completed children, and drops the other children: a coordinator cancels them. The caller
-- names the steps to drop, and not those to keep: a call that arrives late must not drop a step that was announced after it. A
-- call that arrives after a later call of the same owner changes nothing: it could announce a step that was dropped.
-- Role: worker
-- Keys: coordinator_bell, inbox, joins, parting, results, run, waiting
-- ARGV: id, token, order, base, old, count
--   id: id of the parent
--   token: the token of the run's owner
--   order: number of this call among the calls of this owner; a repeated call has the same
--   base: id of the first child of the step; empty: no step is announced, and the script only drops steps
--   old: base of the same step in an earlier life; empty: none
--   count: number of children that the step may create
-- ITEM: left
--   left: base of a step that the run does not need any more; the script drops it
-- Uses: time, run, queue, spend, children
-- Answers: ok, fenced, late, bad, unreadable
--   ok: with the number of children that have ended
--   late: the owner has sent a later call, which arrived before this one
--   bad: an argument can't be read
--   unreadable: a key has another type
local owner_token, beside, called = read_fields(run_key(id), 'token', 'beside', 'called')
if owner_token ~= token then return { 'fenced' } end
if (base ~= '' and not is_base(base)) or not string.find(count, '^%d+$') or #count > 9 then return { 'bad' } end
if not string.find(order, '^%d+$') or #order > 15 then return { 'bad' } end
local last = string.match(called or '', '^(%d+) ')
if last and string.sub(called, #last + 2) == token and tonumber(order) < tonumber(last) then return { 'late' } end
if type(redis.pcall('HLEN', joins_key(id))) ~= 'number' or type(redis.pcall('HLEN', results_key(id))) ~= 'number' then
  return { 'unreadable' }
end

-- Store the endings of children that were not stored, because the entry of their step was lost.
local function store_lost_endings()
  for index = 0, tonumber(count) - 1 do
    local child = child_id(base, index)
    local status = read_fields(run_key(child), 'status')
    if is_ended(status) then report_ending(child, status, 0) end
  end
end

-- Announce the step, and return how many of its children have ended.
local function announce()
  local spawned, ended = read_join(id, base)
  local is_lost = not spawned and redis.call('EXISTS', run_key(base)) == 1 -- The first child exists already.
  if not spawned then
    spawned, ended = 0, 0
    -- If only the entry of the step was lost, its endings are still stored.
    while redis.call('HEXISTS', results_key(id), base .. '#' .. int(ended + 1)) == 1 do ended = ended + 1 end
    local _, before = read_join(id, old)
    for order = 1, math.min(before or 0, redis.call('HLEN', results_key(id))) do
      local index = redis.call('HGET', results_key(id), old .. '#' .. int(order))
      local row = index and redis.call('HGET', results_key(id), old .. ':' .. index) or ''
      local status, payload = string.match(row, '^%d+ (%a+) (.*)$')
      if status == COMPLETED then
        ended = ended + 1
        redis.call('HSET', results_key(id), base .. ':' .. index, int(ended) .. ' ' .. status .. ' ' .. payload, base .. '#'
          .. int(ended), index)
      end
    end
  end
  redis.call('HSET', joins_key(id), base, int(math.max(spawned, tonumber(count))) .. ' ' .. int(ended))
  if not string.find(beside or '', 'r', 1, true) then redis.call('HSET', run_key(id), 'beside', (beside or '') .. 'r') end
  if is_lost then
    store_lost_endings()
    spawned, ended = read_join(id, base)
  end
  return ended
end

local function leave(step)
  if step == base then return end
  drop_step(id, step)
  drop_results(id, step)
end

redis.call('HSET', run_key(id), 'called', order .. ' ' .. token)
local ended = base ~= '' and announce() or 0
leave(old)
for i = 1, items do leave(item(i)) end
return { 'ok', int(ended) }
