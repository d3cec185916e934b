-- claim: a worker takes the runs with the lowest scores from the lines it names.
-- Protects: one claim number is answered once and repeated the same; a gone or expired worker takes nothing; a run whose next
-- strike would be its last is taken only by a worker that holds nothing; for a second after a stopping release a run is not
-- taken by a worker of outdated code, so that in a roll it moves once.
-- ARGV: now, worker, number, want, alone, outdated, inline, budget
-- ITEM: route
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint
-- Moves: queued -> running
-- Answers: ok, suspect, left, old, expired, gone
local clock = server_ms(now)
local known = redis.call('HMGET', worker_key(worker), 'condemned', 'claim', 'floor')
local deadline = redis.call('ZSCORE', workers_key(), worker)
if known[1] or not known[2] or not deadline then return { 'gone' } end
if tonumber(number) < tonumber(known[2]) or tonumber(number) <= tonumber(known[3] or 0) then return { 'old' } end
local nonce = '-' .. number .. '-' .. worker
local spent = 0

-- The checkpoint goes along while it is small; a large one is loaded in pages.
local function checkpoint_of(id, route)
  if string.find(route, '@0', -2, true) then return false end
  local head = read_head(id)
  if not head then return redis.call('EXISTS', ckpt_key(id)) == 1 and 'paged' or false end
  local size, room = head.size, math.min(tonumber(inline), tonumber(budget) - spent)
  if size > room then return 'paged' end
  for _, field in ipairs(redis.call('HKEYS', ckpt_key(id))) do
    size = size + #field + redis.call('HSTRLEN', ckpt_key(id), field)
    if size > room then return 'paged' end
  end
  -- The run is being taken: nothing may fail from here on.
  local messages = redis.pcall('HGETALL', messages_key(id, int(head.generation)))
  if messages.err then return 'paged' end
  spent = spent + size
  return { redis.call('HGETALL', ckpt_key(id)), messages }
end

local function told(id, token, v)
  local spec = whole_spec(id, v[4], v[10], v[11])
  return { id, token, v[3], spec, v[5] or '', v[2], v[6] or '', v[7] or '', v[8] or '', checkpoint_of(id, v[3]) }
end

if number == known[2] then
  local again = {}
  for _, id in ipairs(redis.call('SMEMBERS', owned_key(worker))) do
    local v = fields(run_key(id), 'status', 'counters', 'route', 'spec', 'cause', 'prev', 'spent', 'killed', 'token', 'spec1',
      'spec2')
    local token = v and v[9]
    if token and v[2] and v[3] and v[4] and string.sub(token, -#nonce) == nonce then again[#again + 1] = told(id, token, v) end
  end
  redis.call('HSET', worker_key(worker), 'claim', number)
  return { redis.call('HGET', worker_key(worker), 'suspect') == number and 'suspect' or 'ok', again }
end
if clock >= tonumber(deadline) then return { 'expired' } end

local stopped = {}
for _, name in ipairs(redis.call('SMEMBERS', paused_key())) do stopped[name] = true end
local routes = {}
for i = 1, items do
  local route = item(i)
  local queue, kind = string.match(route, '^([^:]+):(.+)@%d+$')
  if not (stopped['queue:' .. queue] or stopped['kind:' .. kind]) then routes[#routes + 1] = route end
end

-- The first entries of all lines, lowest score first.
local function first(key_of, most)
  local found = {}
  for r = 1, #routes do
    local entries = redis.pcall('ZRANGE', key_of(routes[r]), 0, most - 1, 'WITHSCORES')
    if not entries.err then
      for i = 1, #entries, 2 do
        found[#found + 1] = { id = entries[i], score = tonumber(entries[i + 1]), key = key_of(routes[r]), route = routes[r] }
      end
    end
  end
  if #routes > 1 then
    table.sort(found, function(a, b) if a.score == b.score then return a.id < b.id end return a.score < b.score end)
  end
  return found
end

-- Whether it is left to newer code. Its epoch is the time of its release; one far ahead comes from a clock that fell back.
local LEFT_MS, LOOK_PAST = 1000, 64
local left, bells_of_left = 0, {}
local function is_left(entry, bell)
  local v = fields(run_key(entry.id), 'cause', 'counters')
  local epoch = v and v[1] == 'release' and v[2] and string.match(v[2], '^%d+ %d+ (%d+) ')
  if not epoch or math.abs(clock - tonumber(epoch)) >= LEFT_MS then return false end
  left, bells_of_left[bell] = left + 1, true
  return true
end

local function without_left(found, most)
  local others = {}
  for i = 1, #found do
    if #others == most then break end
    if not is_left(found[i], bell_key(found[i].route)) then others[#others + 1] = found[i] end
  end
  return others
end

local taken, aside, ids = {}, 0, {}

local function take(entry)
  local id = entry.id
  local v = fields(run_key(id), 'status', 'counters', 'route', 'spec', 'cause', 'prev', 'spent', 'killed', 'expires', 'spec1',
    'spec2')
  local life, attempt, epoch, rest
  if v and v[1] == 'queued' and v[2] and v[3] and v[4] then
    life, attempt, epoch, rest = string.match(v[2], '^(%d+) (%d+) (%d+) (.*)$')
  end
  if not life or not string.match(rest, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %-?%d+ %d+$') then
    aside = aside + 1
    redis.call('ZADD', aside_key(), int(clock), 'queued:' .. id)
    return
  end
  local grown = int(math.max(tonumber(epoch) + 1, clock))
  local token = grown .. nonce
  v[2] = life .. ' ' .. int(tonumber(attempt) + 1) .. ' ' .. grown .. ' ' .. rest
  redis.call('HSET', run_key(id), 'status', 'running', 'token', token, 'counters', v[2], 'started', int(clock))
  if v[9] then
    redis.call('HDEL', run_key(id), 'expires')
    redis.call('ZREM', deadlines_key(), 'expire:' .. id)
  end
  ids[#ids + 1] = id
  taken[#taken + 1] = told(id, token, v)
end

local most, answer = math.min(tonumber(want), 500), 'ok'
local found = most > 0 and first(ready_key, outdated == '1' and most + LOOK_PAST or most) or {}
if outdated == '1' then found = without_left(found, most) end
if alone == '1' and most > 0 and redis.call('SCARD', owned_key(worker)) == 0 then
  local suspects = first(suspect_key, 1)
  local kept = suspects[1] and outdated == '1' and is_left(suspects[1], suspect_bell_key(suspects[1].route))
  if suspects[1] and not kept and not (found[1] and found[1].score < suspects[1].score) then
    found, most, answer = { suspects[1] }, 1, 'suspect'
  end
end
local drawn = {}
for i = 1, math.min(most, #found) do
  take(found[i])
  local line = drawn[found[i].key] or {}
  line[#line + 1] = found[i].id
  drawn[found[i].key] = line
end

redis.call('HSET', worker_key(worker), 'claim', number)
if answer == 'suspect' then redis.call('HSET', worker_key(worker), 'suspect', number) end
for key, line in pairs(drawn) do redis.call('ZREM', key, unpack(line)) end
if aside > 0 then redis.call('ZREMRANGEBYRANK', aside_key(), 0, -10001) end
if #ids > 0 then
  redis.call('SADD', owned_key(worker), unpack(ids))
  redis.call('SADD', live_key(), unpack(ids))
end
if #ids + aside > 0 then
  for r = 1, #routes do
    if redis.call('EXISTS', ready_key(routes[r])) == 1 then ring(bell_key(routes[r])) end
    if redis.call('EXISTS', suspect_key(routes[r])) == 1 then ring(suspect_bell_key(routes[r])) end
  end
end
for bell in pairs(bells_of_left) do ring(bell) end
if #taken + aside == 0 and left > 0 then answer = 'left' end
return { answer, taken }
