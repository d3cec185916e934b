-- claim: give a worker the runs with the lowest scores from the ready queues of the routes that it names.
-- Protects: a repeated claim gets the same runs; a claim that arrives late takes no run; a worker that is gone or whose lease
-- expired takes no run; a suspect is given only to a worker that holds no other run. For a second after a stopping worker released
-- a run, a worker with outdated code does not take the run, so that a roll moves each run once.
-- Role: worker
-- Keys: aside, bell, ckpt, coordinator_bell, deadlines, effects, limits, line, live, messages, namespace, owned, pace
-- Keys: paced, paused, ready, run, starting, suspect, suspect_bell, worker, workers
-- ARGV: now, worker, number, want, alone, outdated, inline, budget
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   worker: id of the worker
--   number: number of this claim; the worker counts its claims
--   want: the largest number of runs to take
--   alone: 1 if the worker may take a suspect
--   outdated: 1 if newer code is being rolled out
--   inline: the largest checkpoint, in bytes, that the answer may carry; a larger one is loaded in pages
--   budget: the largest number of bytes of all specs and checkpoints in the answer; the first run is taken whatever its size
-- ITEM: route
--   route: queue, kind and schema, as <queue>:<kind>@<schema>
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, pace
-- Moves: queued -> running
-- Answers: ok, suspect, left, old, expired, gone
--   ok, suspect: with the runs, see answer_run, and 1 if other runs wait on the routes
--   left: all runs that wait are reserved for workers with newer code
--   old: the worker has made a later claim, or does not wait for this one any more
--   expired: the lease of the worker has expired
--   gone: the server does not know the worker, or its runs are being recovered
local clock = server_ms(now)
local condemned, last_claim, floor = unpack(redis.call('HMGET', worker_key(worker), 'condemned', 'claim', 'floor'))
local deadline = redis.call('ZSCORE', workers_key(), worker)
if condemned or not last_claim or not deadline then return { 'gone' } end
if tonumber(number) < tonumber(last_claim) or tonumber(number) <= tonumber(floor or 0) then return { 'old' } end
local nonce = '-' .. number .. '-' .. worker
local budget_used = 0

-- Return the bytes of all fields of a hash, or nil if it has more than `room` bytes, or can't be read.
local function measure(key, size, room)
  local fields = redis.pcall('HKEYS', key)
  if fields.err or size > room then return nil end
  for _, field in ipairs(fields) do
    size = size + #field + redis.call('HSTRLEN', key, field)
    if size > room then return nil end
  end
  return size
end

-- Return the checkpoint and the effects of a run if they are small enough, 'paged' if they have to be loaded in pages, and false if
-- there are none. A run that starts again from the beginning may have effects and no checkpoint.
local function read_checkpoint(id, route, beside)
  local has_effects = knows_effects(beside)
  if has_effects and redis.call('EXISTS', effects_key(id)) == 0 then return 'paged' end -- The effects are lost, see load.lua.
  if not has_schema(route) and not has_effects then return false end
  local head = read_head(id)
  if not head and redis.call('EXISTS', ckpt_key(id)) == 1 then return 'paged' end
  if not head and not has_effects then return false end
  local room = math.min(tonumber(inline), tonumber(budget) - budget_used)
  local size = head and measure(ckpt_key(id), head.size, room) or (not head and 0 or nil)
  if size and has_effects then size = measure(effects_key(id), size, room) end
  if not size then return 'paged' end
  -- From here on the run is being written, so no command may fail.
  local messages = head and redis.pcall('HGETALL', messages_key(id, int(head.generation))) or {}
  if messages.err then return 'paged' end
  budget_used = budget_used + size
  local fields = head and redis.call('HGETALL', ckpt_key(id)) or {}
  return { fields, messages, has_effects and redis.call('HGETALL', effects_key(id)) or nil }
end

-- Return a run in the form in which the answer carries it.
local function answer_run(id, token, route, counters, cause, prev, spent, killed, beside, spec, spec1, spec2)
  spec = join_spec(id, spec, spec1, spec2)
  budget_used = budget_used + #spec
  -- Only runs that have spent something need one more command.
  if beside and string.find(beside, 'b', 1, true) then spent = (spent or '') .. '|' .. (read_fields(run_key(id), 'spend') or '') end
  local checkpoint = (beside or has_schema(route)) and read_checkpoint(id, route, beside)
  return { id, token, route, spec, cause or '', counters, prev or '', spent or '', killed or '', checkpoint }
end

-- Ring for the suspects that wait, and return true if there are any.
local function ring_for_suspects(routes)
  local found = false
  for r = 1, #routes do
    if redis.call('EXISTS', suspect_key(routes[r])) == 1 then
      ring(suspect_bell_key(routes[r]))
      found = true
    end
  end
  return found
end

-- Ring the bells of the routes on which runs wait, and return 1 if there are any, and 0 otherwise.
local function ring_for_others(routes)
  local others = ring_for_suspects(routes) and 1 or 0
  for r = 1, #routes do
    if redis.call('EXISTS', ready_key(routes[r])) == 1 then
      ring(bell_key(routes[r]))
      others = 1
    end
  end
  return others
end

if number == last_claim then
  local again = {}
  for _, id in ipairs(redis.call('SMEMBERS', owned_key(worker))) do
    local token, counters, route, cause, prev, spent, killed, beside, spec, spec1, spec2 = read_fields(run_key(id), 'token',
      'counters', 'route', 'cause', 'prev', 'spent', 'killed', 'beside', 'spec', 'spec1', 'spec2')
    if token and counters and route and spec and string.sub(token, -#nonce) == nonce then
      again[#again + 1] = answer_run(id, token, route, counters, cause, prev, spent, killed, beside, spec, spec1, spec2)
    end
  end
  redis.call('HSET', worker_key(worker), 'claim', number)
  local named = {}
  for i = 1, items do named[i] = item(i) end
  return { redis.call('HGET', worker_key(worker), 'suspect') == number and 'suspect' or 'ok', again, ring_for_others(named) }
end
if clock >= tonumber(deadline) then return { 'expired' } end

local paused = {}
for _, name in ipairs(redis.call('SMEMBERS', paused_key())) do paused[name] = true end
local routes = {}
for i = 1, items do
  local route = item(i)
  local queue, kind = string.match(route, ROUTE_PARTS)
  if not (paused['queue:' .. queue] or paused['kind:' .. kind]) then routes[#routes + 1] = route end
end

-- Return the first entries of the queues of all routes: a list of their positions in `entries`, lowest score first. `entries` has
-- the ids, the scores and the routes of all entries in lists of their own, because a table for each entry takes the server longer.
-- `key_of` is ready_key or suspect_key.
local entries = { id = {}, score = {}, route = {} }
local function first_entries(key_of, most)
  local ids, scores, from, found = entries.id, entries.score, entries.route, {}
  for r = 1, #routes do
    local read = redis.pcall('ZRANGE', key_of(routes[r]), 0, most - 1, 'WITHSCORES')
    if not read.err then
      for i = 1, #read, 2 do
        local place = #ids + 1
        ids[place], scores[place], from[place] = read[i], tonumber(read[i + 1]), routes[r]
        found[#found + 1] = place
      end
    end
  end
  if #routes > 1 then
    table.sort(found, function(a, b) if scores[a] == scores[b] then return ids[a] < ids[b] end return scores[a] < scores[b] end)
  end
  return found
end

-- Return true if a run is reserved for a worker with newer code. The epoch of a released run is the time of its release. An epoch
-- far in the future means that the server's clock was put back.
local LEFT_MS, LOOK_PAST = 1000, 64
local left, bells_of_left = 0, {}
local function is_left(id, bell)
  local cause, counters = read_fields(run_key(id), 'cause', 'counters')
  local _, epoch
  if cause == 'release' and counters then _, _, epoch = string.match(counters, COUNTERS_TO_EPOCH) end
  if not epoch or math.abs(clock - tonumber(epoch)) >= LEFT_MS then return false end
  left, bells_of_left[bell] = left + 1, true
  return true
end

local function without_left(found, most)
  local others = {}
  for i = 1, #found do
    if #others == most then break end
    local place = found[i]
    if not is_left(entries.id[place], bell_key(entries.route[place])) then others[#others + 1] = place end
  end
  return others
end

-- Count the start of a run that was admitted under a rate of starts. A run that was claimed before, and kept its place, does not
-- count again.
local function count_start(id)
  local group = read_fields(run_key(id), 'group')
  if not group or redis.pcall('SREM', starting_key(group), id) ~= 1 then return end
  local _, rate = limit_of(group)
  local pace = rate and read_pace(group, rate, clock)
  if not pace then return end
  pace.used = pace.used + pace.interval
  redis.call('SET', pace_key(group), string.format('%.6f', pace.used), 'PX', int(math.ceil(pace.used - clock) + TOMBSTONE_MS))
  if redis.call('EXISTS', line_key(group)) == 1 then fill_later(group, pace, clock) end
end

local taken, aside, ids = {}, 0, {}

-- Take a run, or set it aside if it can't be read. Return false if its spec does not fit into the answer: then the run stays in its
-- queue. The size of a spec is checked before the spec is read only after a large spec was seen. So claims of small runs need no
-- additional command, and a claim reads at most one large spec that it does not return.
local LARGE_SPEC = 4096
local sizes_matter = false
local function take(id)
  if sizes_matter then
    local size = redis.pcall('HSTRLEN', run_key(id), 'spec')
    if type(size) == 'number' and budget_used + size > tonumber(budget) then return false end
  end
  local status, counters, route, cause, prev, spent, killed, expires, beside, spec, spec1, spec2 = read_fields(run_key(id),
    'status', 'counters', 'route', 'cause', 'prev', 'spent', 'killed', 'expires', 'beside', 'spec', 'spec1', 'spec2')
  local life, attempt, epoch, others
  if status == QUEUED and counters and route and spec then
    life, attempt, epoch, others = string.match(counters, COUNTERS_TO_EPOCH)
  end
  if not life then
    aside = aside + 1
    redis.pcall('ZADD', aside_key(), int(clock), 'queued:' .. id)
    return true
  end
  if #spec > LARGE_SPEC then
    if #ids > 0 and budget_used + #spec > tonumber(budget) then return false end
    sizes_matter = true
  end
  epoch = int(math.max(tonumber(epoch) + 1, clock))
  local token = epoch .. nonce
  counters = life .. ' ' .. int(tonumber(attempt) + 1) .. ' ' .. epoch .. ' ' .. others
  redis.call('HSET', run_key(id), 'status', RUNNING, 'token', token, 'counters', counters, 'started', int(clock))
  if expires then
    redis.call('HDEL', run_key(id), 'expires')
    redis.call('ZREM', deadlines_key(), 'expire:' .. id)
  end
  if beside and string.find(beside, 'p', 1, true) then count_start(id) end
  ids[#ids + 1] = id
  taken[#taken + 1] = answer_run(id, token, route, counters, cause, prev, spent, killed, beside, spec, spec1, spec2)
  return true
end

local most, answer = math.min(tonumber(want), MOST_CLAIMED), 'ok'
local found = most > 0 and first_entries(ready_key, outdated == '1' and most + LOOK_PAST or most) or {}
if outdated == '1' then found = without_left(found, most) end
if alone == '1' and most > 0 and redis.call('SCARD', owned_key(worker)) == 0 then
  local suspect = first_entries(suspect_key, 1)[1]
  local kept = suspect and outdated == '1' and is_left(entries.id[suspect], suspect_bell_key(entries.route[suspect]))
  if suspect and not kept and not (found[1] and entries.score[found[1]] < entries.score[suspect]) then
    found, most, answer = { suspect }, 1, 'suspect'
  end
end
local removed = {} -- ids by the route in whose queue they waited
for i = 1, math.min(most, #found) do
  local id, route = entries.id[found[i]], entries.route[found[i]]
  if not take(id) then break end
  local list = removed[route]
  if list then list[#list + 1] = id else removed[route] = { id } end
end

redis.call('HSET', worker_key(worker), 'claim', number)
if answer == 'suspect' then redis.call('HSET', worker_key(worker), 'suspect', number) end
for route, list in pairs(removed) do
  redis.call('ZREM', answer == 'suspect' and suspect_key(route) or ready_key(route), unpack(list))
end
if aside > 0 then redis.pcall('ZREMRANGEBYRANK', aside_key(), 0, -1 - ASIDE_ENTRIES) end
if #ids > 0 then
  redis.call('SADD', owned_key(worker), unpack(ids))
  redis.pcall('SADD', live_key(), unpack(ids))
end
-- The worker may have taken the token of a bell for this claim. If runs are left, the bell must wake the next worker.
local others = 0
if #ids + aside > 0 then
  others = ring_for_others(routes)
elseif alone ~= '1' then
  ring_for_suspects(routes) -- This claim may not take a suspect, but it may have taken the token of a suspect's bell.
end
for bell in pairs(bells_of_left) do ring(bell) end
if #taken + aside == 0 and left > 0 then answer = 'left' end
return { answer, taken, others }
