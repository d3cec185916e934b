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

-- What can't be read, or is too large for a TTL or a score, would stop a script in the middle: this one, with the neighbours
-- written and in no line, or the one that ends the run.
local function whole(text) return string.find(text, '^%d+$') and #text <= 15 end

local function readable(route, priority, due, expires, key_ttl, retention)
  return string.find(route, '^[^:]+:.+@%d+$') and string.find(priority, '^-?%d%d?%d?$')
    and (due == '' or whole((string.gsub(due, '^%+', '')))) and (expires == '' or whole(expires))
    and (key_ttl == '-' or whole(key_ttl)) and (retention == '' or whole(retention))
end

-- What a key says: the run that it names, or that it can't be read. A run that it names and that is gone has ended before.
local function found_by_key(route, key, digest, id)
  local once = once_key(string.match(route, '^[^:]+:(.+)@%d+$'), key)
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

-- One call often enqueues many to one route: they enter it together.
local lines = {}
local function line_of(route)
  if not lines[route] and type(redis.pcall('ZCARD', ready_key(route))) == 'number' then lines[route] = {} end
  return lines[route]
end

local function later(route, score, id)
  local line = lines[route]
  local n = #line
  line[n + 1], line[n + 2] = score, id
end

local function create(id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent)
  local start = due ~= '' and math.max(tonumber(due), clock) or clock
  if due ~= '' and string.sub(due, 1, 1) == '+' then start = clock + tonumber(string.sub(due, 2)) end
  local score = start - tonumber(priority) * 8796093022208
  local delayed = start > clock
  redis.call('HSET', run_key(id), 'status', delayed and 'delayed' or 'queued', 'route', route, 'counters',
    string.format('1 0 0 0 0 0 0 0 0 0 %.0f %.0f', score, clock), in_pieces(spec))
  if not string.find(route, '@0', -2, true) then redis.call('HSET', run_key(id), 'asked', string.match(route, '%d+$')) end
  if retention ~= '' then redis.call('HSET', run_key(id), 'retention', retention) end
  if once ~= '' then
    redis.call('SET', once_key(string.match(route, '^[^:]+:(.+)@%d+$'), once), id .. ' ' .. digest)
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
  if delayed then into_delayed(id, start) else later(route, int(score), id) end
end

local answers = {}
for i = 1, items do
  local id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent = item(i)
  local there = redis.pcall('HGET', run_key(id), 'status')
  if type(there) == 'string' then
    redis.call('HSET', run_key(id), 'status', there)
    answers[i] = { 'created', id }
  elseif not readable(route, priority, due, expires, key_ttl, retention) then
    answers[i] = { 'bad', id }
  elseif there or not line_of(route) then
    answers[i] = { 'unreadable', id }
  else
    answers[i] = once ~= '' and found_by_key(route, once, digest, id)
    if not answers[i] and parent ~= '' and is_felled(parent) then
      answers[i] = { 'felled', parent }
    elseif not answers[i] then
      create(id, route, spec, priority, due, expires, once, digest, key_ttl, retention, parent)
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
