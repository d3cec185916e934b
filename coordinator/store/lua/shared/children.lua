-- Joined children: runs for whose endings a step of their parent waits. They live in the partition of their parent, so that the
-- script that ends a child also stores the ending for the parent. A step is named by its base, the id of its first child. `joins`
-- has the number of children of each step, and how many of them have ended. `results` has the endings, with their order.

-- Return true if the text is a valid base: the ids of a step's children can count up from it.
local function is_base(base) return #string.match(base, '^[0-9a-hjkmnp-tv-z]*') == 20 and string.find(base, '^%-%d+$', 21) ~= nil end

-- Return the id of a child. The ids of a step's children count up from its base.
local function child_id(base, index)
  local time, tail, partition = string.match(base, '^(..........)(..........)(%-%d+)$')
  local number, digits = index, {}
  for i = 1, 10 do
    local digit = string.find(ID_DIGITS, string.sub(tail, i, i), 1, true) - 1
    number = number + digit * 32 ^ (10 - i)
  end
  for i = 10, 1, -1 do
    local digit = number % 32
    digits[i] = string.sub(ID_DIGITS, digit + 1, digit + 1)
    number = (number - digit) / 32
  end
  return time .. table.concat(digits) .. partition
end

-- Return how many children a step has and how many have ended; nil if the parent does not know the step, or has dropped it.
local function read_join(parent, base)
  local text = redis.pcall('HGET', joins_key(parent), base)
  local spawned, ended = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+)$')
  if spawned then return tonumber(spawned), tonumber(ended) end
end

-- Return true if the number of the run's ended children has changed since the last call for this run, and store the number. Scripts
-- that take a run from its owner call it: a parent that waits for one child after the other makes progress although it saves nothing.
local function note_new_endings(id, run)
  if not string.find(run.beside or '', 'r', 1, true) then return false end
  local steps, count = redis.pcall('HVALS', joins_key(id)), 0
  for _, step in ipairs(steps) do count = count + (tonumber(string.match(step, '^%d+ (%d+)$')) or 0) end
  if tonumber(redis.call('HGET', run_key(id), 'endings') or 0) == count then return false end
  redis.call('HSET', run_key(id), 'endings', int(count))
  return true
end

-- Return the fields of a parent that the ending of a child needs; nil if the parent can't be read. A script that ends many runs reads
-- each parent once: it sets `parents_read` to a table. Only complete.lua does. A parent that it completes loses its steps, so
-- read_join then answers that later endings of its children are not stored.
local parents_read
local function read_parent(id)
  if parents_read and parents_read[id] then return parents_read[id] end
  local parent = read_named(run_key(id), 'status', 'counters', 'wait', 'token')
  if parents_read then parents_read[id] = parent end
  return parent
end

-- Store the ending of a child, once, if its parent has not ended and is in the same life. If enough children have ended for a
-- waiting parent, make the parent due, so that a coordinator wakes it.
local function record_result(parent, life, base, index, ending, now)
  local owner = read_parent(parent)
  if not owner or not is_open(owner.status) or string.match(owner.counters or '', '^%d+') ~= life then return end
  local spawned, ended = read_join(parent, base)
  if not spawned then return end
  local results, order = results_key(parent), int(ended + 1)
  if redis.pcall('HSETNX', results, base .. ':' .. index, order .. ' ' .. ending) ~= 1 then return end
  redis.call('HSET', results, base .. '#' .. order, index)
  redis.call('HSET', joins_key(parent), base, int(spawned) .. ' ' .. order)
  if owner.status == RUNNING and owner.token then
    -- The worker then reads all endings, after this script has ended, so one hint is enough.
    if not owner.notified then notify(worker_of(owner.token), 'signal ' .. parent) end
    owner.notified = true
    return
  end
  if owner.status ~= WAITING or not owner.wait then return end
  local part = ' c:' .. base .. ':'
  local from, to = string.find(owner.wait, part, 1, true)
  local need = from and string.match(owner.wait, '^%d+', to + 1)
  if need and ended + 1 >= tonumber(need) then
    redis.pcall('ZADD', waiting_key(), 'XX', int(now), parent) -- A damaged key must not stop the ending of the child.
    ring(coordinator_bell_key())
  end
end

-- Tell the parent of a joined child how the child ended.
local function report_ending(id, status, now)
  local joined, result, error, reason, spend = read_fields(run_key(id), 'joined', 'result', 'error', 'reason', 'spend')
  local parent, life, base, index = string.match(joined or '', JOINED_PATTERN)
  if not parent then return end
  if spend then roll_up_spend(id, parent) end
  local payload = status == COMPLETED and (result or '') or netstring(error or '') .. netstring(reason or '')
  record_result(parent, life, base, index, status .. ' ' .. payload, now)
end

-- Return the base of a step that was dropped, and the number of its children; nil if the entry of `parting` can't be read.
local function read_parting(entry)
  local base, spawned = string.match(entry, '^([0-9a-hjkmnp-tv-z]+%-%d+) (%d+)$')
  if base and is_base(base) and #spawned <= 9 then return base, tonumber(spawned) end
end

-- Let the open children of a step go: add the step to `parting`, and coordinators cancel its open children.
local function drop_step(parent, base)
  local spawned, ended = read_join(parent, base)
  if spawned and ended < spawned then
    -- A damaged key must not stop the ending of a run.
    redis.pcall('ZADD', parting_key(), 'NX', 0, base .. ' ' .. int(spawned))
    ring(coordinator_bell_key())
  end
end

local function drop_all_steps(parent)
  local bases = redis.pcall('HKEYS', joins_key(parent))
  for i = 1, #bases do drop_step(parent, bases[i]) end
end

-- Delete the results of a step, and its entry in `joins`.
local function drop_results(parent, base)
  local _, ended = read_join(parent, base)
  ended = math.min(ended or 0, redis.call('HLEN', results_key(parent)))
  for first = 1, ended, BATCH do
    local fields = {}
    for order = first, math.min(first + BATCH - 1, ended) do fields[#fields + 1] = base .. '#' .. int(order) end
    local indexes = redis.call('HMGET', results_key(parent), unpack(fields))
    redis.call('HDEL', results_key(parent), unpack(fields))
    for i = 1, #fields do fields[i] = base .. ':' .. (indexes[i] or '') end
    redis.call('HDEL', results_key(parent), unpack(fields))
  end
  redis.call('HDEL', joins_key(parent), base)
end
