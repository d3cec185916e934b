-- enqueue: takes over runs from a producer.
-- Protects: a run is created once, however often its enqueue is sent; a key names one run; nothing is created below a run whose
-- tree was felled.
-- ARGV: now, birth
-- EACH: id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent
-- Uses: time, run, queue
-- Moves: none -> queued, none -> delayed
-- Answers: created, found, conflict, stranger, bad, unreadable, felled
if birth ~= '' and redis.call('HGET', namespace_key(), 'birth') ~= birth then
  local answers = {}
  for i = 1, items do answers[i] = { 'stranger', '' } end
  return answers
end
local clock = server_ms(now)

-- What few runs have stands apart, and is made for the first of them: a server makes each function anew for every call.
local function with_options()
  -- What can't be read, or is too large for a TTL or a score, would stop a script in the middle: this one, with the neighbours
  -- written and in no line, or the one that ends the run.
  local function whole(text) return string.find(text, '^%d+$') and #text <= 15 end

  local function readable(due, expires, key_ttl, retention)
    return (due == '' or whole((string.gsub(due, '^%+', '')))) and (expires == '' or whole(expires))
      and (key_ttl == '-' or whole(key_ttl)) and (retention == '' or whole(retention))
  end

  local function once_of(route, key) return once_key(string.match(route, '^[^:]+:(.+)@%d+$'), key) end

  -- What a key says: the run that it names, or that it can't be read. A run that it names and that is gone has ended before.
  local function found_by_key(id, once, digest)
    local named = redis.pcall('GET', once)
    if not named then return nil end
    if type(named) ~= 'string' then return { 'unreadable', id } end
    local other, its = string.match(named, '^(%S+) (.*)$')
    if other == id then return { 'created', id } end
    if its == digest then redis.call('SET', once, named, 'KEEPTTL') end
    return { its == digest and 'found' or 'conflict', other }
  end

  -- As fell.lua writes it.
  local function is_felled(parent)
    local mark = redis.pcall('GET', felled_key(parent))
    return type(mark) == 'string' and string.sub(mark, 1, 1) ~= '-'
  end

  -- Why it is not created; nil where it is.
  local function refused(id, route, once, digest, parent)
    local answer = once ~= '' and found_by_key(id, once_of(route, once), digest) or nil
    if not answer and parent ~= '' and is_felled(parent) then answer = { 'felled', parent } end
    return answer
  end

  local function start_of(due)
    if due == '' then return clock end
    if string.sub(due, 1, 1) == '+' then return clock + tonumber(string.sub(due, 2)) end
    return math.max(tonumber(due), clock)
  end

  local function write(id, route, expires, once, digest, key_ttl, retention, parent)
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
    if parent ~= '' then
      redis.pcall('SADD', children_key(parent), id)
      redis.call('PEXPIRE', children_key(parent), 1209600000)
    end
  end

  return { readable = readable, refused = refused, start_of = start_of, write = write }
end

local answers, options = {}, nil
local lines = {} -- one call often enqueues many to one route: they enter it together
for i = 1, items do
  local id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent = item(i)
  local plain = due == '' and expires == '' and once == '' and retention == '' and parent == '' and key_ttl == '-'
  if not plain then options = options or with_options() end
  local key = run_key(id)
  local there = redis.pcall('HGET', key, 'status')
  if type(there) == 'string' then
    redis.call('HSET', key, 'status', there)
    answers[i] = { 'created', id }
  elseif not string.find(route, '^[^:]+:.+@%d+$') or not string.find(priority, '^-?%d%d?%d?$')
    or not (plain or options.readable(due, expires, key_ttl, retention)) then
    answers[i] = { 'bad', id }
  else
    local line = lines[route]
    if not line and type(redis.pcall('ZCARD', ready_key(route))) == 'number' then
      line = {}
      lines[route] = line
    end
    if there or not line then
      answers[i] = { 'unreadable', id }
    else
      answers[i] = not plain and options.refused(id, route, once, digest, parent) or nil
    end
    if not answers[i] then
      local start = plain and clock or options.start_of(due)
      local score = int(start - tonumber(priority) * 8796093022208)
      redis.call('HSET', key, 'status', start > clock and 'delayed' or 'queued', 'route', route, 'counters',
        '1 0 0 0 0 0 0 0 0 0 ' .. score .. ' ' .. int(clock), in_pieces(spec))
      if not string.find(route, '@0', -2, true) then
        redis.call('HSET', key, 'asked', string.match(route, '%d+$'))
      end
      if not plain then options.write(id, route, expires, once, digest, key_ttl, retention, parent) end
      if start > clock then into_delayed(id, start) else line[#line + 1], line[#line + 2] = score, id end
      answers[i] = { 'created', id }
    end
  end
end

for route, line in pairs(lines) do
  for from = 1, #line, 1000 do
    redis.call('ZADD', ready_key(route), unpack(line, from, math.min(from + 999, #line)))
  end
  if #line > 0 then
    redis.call('SADD', routes_key(), route)
    ring(bell_key(route))
  end
end
return answers
