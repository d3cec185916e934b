-- enqueue: create runs.
-- Protects: a run is created once, however often its enqueue is sent and however late; an idempotency key names one run; no run
-- is created below a parent whose tree was cancelled.
-- Role: producer
-- Keys: admitted, aside, bell, children, coordinator_bell, deadlines, delayed, felled, forgotten, groups, joins, limits
-- Keys: line, namespace, once, pace, paced, parents, ready, results, routes, run, starting, suspect, suspect_bell
-- ARGV: now, birth
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   birth: the birth mark of the namespace that the caller knows; empty: it is not checked
-- EACH: id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent, group
--   id: id of the run
--   route: queue, kind and schema, as <queue>:<kind>@<schema>
--   spec: inputs, meta and options, encoded
--   priority: a higher one is claimed first
--   due: when the run may be claimed, in ms; '+1500' counts from now; empty: immediately
--   expires: ms after which the run is cancelled if no worker has claimed it; empty: never
--   once: the idempotency key; empty: none
--   digest: the digest of the inputs; the same key with another digest is a conflict
--   key_ttl: ms that the idempotency key is kept after the end; '-': as long as the run
--   retention: ms that the run is kept after its end; empty: the default of its status
--   parent: id of the run that enqueues this one; empty: none. For a joined child: "<parent> <life> <base> <index>"
--   group: name of the run's group, whose runs share the places of a limit; empty: none
-- Uses: time, run, queue, spend, children, pace, groups
-- Moves: none -> queued, none -> delayed
-- Answers: created, found, conflict, mismatch, bad, unreadable, blocked, stale, untimely, ungrouped
--   created: the run exists; this call or an earlier one created it
--   found: the idempotency key names another run, with the same inputs
--   mismatch: the stored birth mark of the namespace is another one
--   bad: an argument can't be read
--   unreadable: a key has another type
--   blocked: the tree of the parent was cancelled
--   stale: the parent does not wait for this child any more
--   untimely: with the server's time instead of the id; the id is so old that a run of this id may have ended and been deleted,
--     or the clock that made the id is wrong
--   ungrouped: the kind has a limit, so that its runs need a group
local stored_birth, limited = unpack(redis.call('HMGET', namespace_key(), 'birth', 'limited'))
if birth ~= '' and stored_birth ~= birth then
  local answers = {}
  for i = 1, items do answers[i] = { 'mismatch', '' } end
  return answers
end
local clock = server_ms(now)

-- Most runs have none of these options. The functions for options are created only when a run has some, because the server creates
-- each function again for every call of the script.
local function with_options()
  -- A value that can't be read, or that is too large for a TTL or a score, would stop a script in the middle: either this script,
  -- while other runs of the call are written but in no queue yet, or later the script that ends the run.
  local function is_whole(text) return string.find(text, '^%d+$') and #text <= 15 end

  local function are_readable(due, expires, key_ttl, retention)
    return (due == '' or is_whole((string.gsub(due, '^%+', '')))) and (expires == '' or is_whole(expires))
      and (key_ttl == '-' or is_whole(key_ttl)) and (retention == '' or is_whole(retention))
  end

  local function once_of(route, key)
    local _, kind = string.match(route, ROUTE_PARTS)
    return once_key(kind, key)
  end

  -- Return found or conflict if the idempotency key exists, otherwise nil. The key may name a run that has ended and expired.
  local function find_by_key(id, once, digest)
    local named = redis.pcall('GET', once)
    if not named then return nil end
    if type(named) ~= 'string' then return { 'unreadable', id } end
    local other, its_digest = string.match(named, '^(%S+) (.*)$')
    if other == id then return { 'created', id } end
    if its_digest == digest then redis.call('SET', once, named, 'KEEPTTL') end
    return { its_digest == digest and 'found' or 'conflict', other }
  end

  -- block_children.lua writes this mark. A '-' in front means that the parent was revived since.
  local function is_blocked(parent)
    local mark = redis.pcall('GET', felled_key(parent))
    return type(mark) == 'string' and string.sub(mark, 1, 1) ~= '-'
  end

  local function label(route, group)
    local _, kind = string.match(route, ROUTE_PARTS)
    return kind .. ':' .. group
  end

  -- Queue a new run of a group.
  local function enter_group(id, route, group, score)
    enter(id, route, { strikes = 0, score = tonumber(score) }, label(route, group))
  end

  -- Return the answer that refuses the run; nil if the run may be created.
  local function refuse(id, route, due, expires, once, digest, parent, group)
    if group ~= '' and not are_groups_readable(label(route, group)) then return { 'unreadable', id } end
    if due ~= '' and type(redis.pcall('ZCARD', delayed_key())) ~= 'number' then return { 'unreadable', id } end
    if expires ~= '' and type(redis.pcall('ZCARD', deadlines_key())) ~= 'number' then return { 'unreadable', id } end
    local answer = once ~= '' and find_by_key(id, once_of(route, once), digest) or nil
    local named, life, base, index = string.match(parent, JOINED_PATTERN)
    if not answer and parent ~= '' and is_blocked(named or parent) then answer = { 'blocked', named or parent } end
    if answer or not named then return answer end
    -- A child that has ended may be deleted already, and must not be created again. A step that was dropped gets no more children.
    if redis.pcall('HEXISTS', results_key(named), base .. ':' .. index) == 1 then return { 'created', id } end
    local counters, status = read_fields(run_key(named), 'counters', 'status')
    local spawned = read_join(named, base)
    if not spawned or tonumber(index) >= spawned or not is_open(status) or string.match(counters or '', '^%d+') ~= life then
      return { 'stale', named }
    end
  end

  -- Return true if the run may have existed before, although it has no hash now. A run is kept for its retention after its end, so
  -- its hash exists for at least that time after its id was made. The clock that made the id may be wrong. So an id may be older
  -- than this clock by 60 % of the retention, and ahead of it by 40 %.
  local function is_untimely(id, retention)
    local kept = retention == '' and DAY_MS or math.max(tonumber(retention), TOMBSTONE_MS)
    local made = 0
    for i = 1, 10 do
      local digit = string.find(ID_DIGITS, string.sub(id, i, i), 1, true)
      if not digit then return true end
      made = made * 32 + digit - 1
    end
    local age = clock - made
    if age > 0.6 * kept or age < -0.4 * kept then return true end
    if age <= 0.6 * TOMBSTONE_MS then return false end
    -- A run may have been removed before its retention was over. `forgotten` is the largest id of such runs.
    local last = redis.pcall('GET', forgotten_key())
    return type(last) == 'string' and id <= last
  end

  local function start_of(due)
    if due == '' then return clock end
    if string.sub(due, 1, 1) == '+' then return clock + tonumber(string.sub(due, 2)) end
    return math.max(tonumber(due), clock)
  end

  local function write(id, route, expires, once, digest, key_ttl, retention, parent, group)
    if retention ~= '' then redis.call('HSET', run_key(id), 'retention', retention) end
    if once ~= '' then
      redis.call('SET', once_of(route, once), id .. ' ' .. digest)
      redis.call('HSET', run_key(id), 'once', key_ttl .. ' ' .. once, 'digest', digest)
    end
    if expires ~= '' then
      redis.call('HSET', run_key(id), 'expires', int(clock + tonumber(expires)))
      redis.call('ZADD', deadlines_key(), int(clock + tonumber(expires)), 'expire:' .. id)
      ring(coordinator_bell_key())
    end
    local named = string.match(parent, JOINED_PATTERN)
    if named then
      redis.call('HSET', run_key(id), 'joined', parent, 'beside', 'j')
      parent = named
    end
    if group ~= '' then redis.call('HSET', run_key(id), 'group', label(route, group), 'beside', named and 'jl' or 'l') end
    if parent ~= '' then
      redis.pcall('SADD', children_key(parent), id)
      redis.call('PEXPIRE', children_key(parent), CHILDREN_MS)
      redis.pcall('ZADD', parents_key(), 'NX', int(clock + CHILDREN_LOOK_MS), parent)
    end
  end

  return { are_readable = are_readable, refuse = refuse, is_untimely = is_untimely, start_of = start_of, write = write,
    enter_group = enter_group }
end

-- Compute the first seven digits of an id that is made now. They change every 33 s. The age of an id with these digits need not be
-- checked. This code is written for speed: ID_PAIRS has the digits of all numbers below 1024.
local n = math.floor(clock / 32768)
local low = n % 1024
n = (n - low) / 1024
local middle = n % 1024
n = (n - middle) / 1024
local high = n % 1024
n = (n - high) / 1024
local sub = string.sub
local present = sub(ID_DIGITS, n + 1, n + 1) .. sub(ID_PAIRS, 2 * high + 1, 2 * high + 2)
  .. sub(ID_PAIRS, 2 * middle + 1, 2 * middle + 2) .. sub(ID_PAIRS, 2 * low + 1, 2 * low + 2)

local answers, options = {}, nil
local created = int(clock)
local ready = {} -- scores and ids by route: one call often enqueues many runs to one route, and one command adds them
for i = 1, items do
  local id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent, group = item(i)
  local plain = due == '' and expires == '' and once == '' and retention == '' and parent == '' and key_ttl == '-'
    and group == ''
  if not plain then options = options or with_options() end
  local key = run_key(id)
  local status = redis.pcall('HGET', key, 'status')
  if type(status) == 'string' then
    redis.call('HSET', key, 'status', status)
    answers[i] = { 'created', id }
  elseif not string.find(route, ROUTE_PATTERN) or not string.find(priority, '^-?%d%d?%d?$')
    or not (plain or options.are_readable(due, expires, key_ttl, retention)) then
    answers[i] = { 'bad', id }
  else
    local entries = ready[route]
    if not entries and type(redis.pcall('ZCARD', ready_key(route))) == 'number' then
      entries = {}
      ready[route] = entries
    end
    if status or not entries then
      answers[i] = { 'unreadable', id }
    else
      answers[i] = not plain and options.refuse(id, route, due, expires, once, digest, parent, group) or nil
      if limited and group == '' and not answers[i] then
        local _, kind = string.match(route, ROUTE_PARTS)
        if string.find(limited, ' ' .. kind .. ' ', 1, true) then answers[i] = { 'ungrouped', id } end
      end
      -- The age of a joined child's id is not checked: the parent knows its joined children for as long as it waits.
      local joined = not plain and string.find(parent, ' ', 1, true)
      if not answers[i] and not joined and (retention ~= '' or sub(id, 1, 7) ~= present) then
        options = options or with_options()
        if options.is_untimely(id, retention) then answers[i] = { 'untimely', created } end
      end
    end
    if not answers[i] then
      local start = plain and clock or options.start_of(due)
      local score = int(start - tonumber(priority) * PRIORITY_STEP)
      redis.call('HSET', key, 'status', start > clock and DELAYED or QUEUED, 'route', route, 'counters',
        initial_counters(score, created), split_spec(spec))
      if has_schema(route) then redis.call('HSET', key, 'asked', string.match(route, '%d+$')) end
      if not plain then options.write(id, route, expires, once, digest, key_ttl, retention, parent, group) end
      if start > clock then
        add_to_delayed(id, start)
      elseif group ~= '' then
        options.enter_group(id, route, group, score)
      else
        entries[#entries + 1], entries[#entries + 2] = score, id
      end
      answers[i] = { 'created', id }
    end
  end
end

for route, entries in pairs(ready) do
  for from = 1, #entries, BATCH do
    redis.call('ZADD', ready_key(route), unpack(entries, from, math.min(from + BATCH - 1, #entries)))
  end
  if #entries > 0 then
    redis.pcall('SADD', routes_key(), route)
    ring(bell_key(route))
  end
end
return answers
