-- fire: moves schedules from the fire time that is expected to the next one, and enqueues the run of it.
-- Protects: each fire time enqueues once, whoever fires and however often: the expected time is compared and the run's id follows from
-- the fire time. A schedule that was replaced, paused or removed meanwhile has another generation and does not fire.
-- ARGV: now, grace
-- EACH: name, generation, expected, at, next, due, offset, id
-- Uses: time, run, queue, checkpoint, endings, cancel, schedule
-- Moves: none -> queued, queued -> cancelled, delayed -> cancelled, waiting -> cancelled
-- Unconfirmed: a fire time that is not kept is fired again, with the same run
-- Answers: fired, skipped, moved, early, changed, bad, unreadable
local clock = server_ms(now)

local function number(text) return string.find(text, '^%d+$') and tonumber(text) end

-- What can't be read would stop the script in the middle.
local function readable(s)
  return s.route and s.spec and string.find(s.route, '^[^:]+:.+@%d+$') and string.find(s.priority or '', '^-?%d+$')
    and string.find(s.expires, '^%d*$') and string.find(s.retention, '^%d*$')
    and type(redis.pcall('ZCARD', ready_key(s.route))) == 'number'
end

-- The run of the fire time before, where it has not ended.
local function open_run(id)
  local run = id and read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or KEPT[run.status] then return nil end
  return run, counters
end

local function move(name, next, due, offset)
  redis.call('HSET', schedule_key(name), 'next', next, 'due', due, 'offset', offset)
  redis.call('HDEL', schedule_key(name), 'why')
  look_at(name, due)
end

-- As enqueue.lua does.
local function create(id, s)
  local score = clock - tonumber(s.priority) * 8796093022208
  redis.call('HSET', run_key(id), 'status', 'queued', 'route', s.route, 'counters',
    string.format('1 0 0 0 0 0 0 0 0 0 %.0f %.0f', score, clock), in_pieces(s.spec))
  if not string.find(s.route, '@0', -2, true) then redis.call('HSET', run_key(id), 'asked', string.match(s.route, '%d+$')) end
  if s.retention ~= '' then redis.call('HSET', run_key(id), 'retention', s.retention) end
  if s.expires ~= '' then
    redis.call('HSET', run_key(id), 'expires', int(clock + tonumber(s.expires)))
    redis.call('ZADD', deadlines_key(), int(clock + tonumber(s.expires)), 'expire:' .. id)
    ring(coordinator_bell_key())
  end
  into_ready(id, s.route, int(score))
end

local function enqueued(name, next, due, offset, id)
  redis.call('HSET', schedule_key(name), 'last', id)
  redis.call('HINCRBY', schedule_key(name), 'fired', 1)
  move(name, next, due, offset)
  return { 'fired', id }
end

local function fire(name, generation, expected, at, next, due, offset, id)
  local s = read_schedule(name)
  if not s or s.generation ~= generation or s.state ~= 'active' then return { 'changed', '' } end
  if s.next ~= expected then
    if id == '' or type(redis.pcall('HGET', run_key(id), 'status')) ~= 'string' then return { 'changed', '' } end
    redis.call('HSET', schedule_key(name), 'generation', generation)
    return { 'fired', id }
  end
  if not number(next) or not number(due) or (at ~= '' and not number(at)) or number(next) <= (number(expected) or 0) then
    return { 'bad', '' }
  end
  if (number(s.due) or 0) > clock or (number(at) or 0) > clock then return { 'early', '' } end
  if at == '' then
    move(name, next, due, offset)
    return { 'moved', '' }
  end
  local there = redis.pcall('HGET', run_key(id), 'status')
  if type(there) == 'string' then return enqueued(name, next, due, offset, id) end
  if there or not readable(s) then return { 'unreadable', '' } end
  local before, counters
  if s.overlap ~= 'allow' then before, counters = open_run(s.last) end
  if before and s.overlap == 'skip' then
    redis.call('HINCRBY', schedule_key(name), 'skipped', 1)
    move(name, next, due, offset)
    return { 'skipped', s.last }
  end
  if before then cancel_run(s.last, before, counters, clock, grace, 'cancelled: the next run of its schedule began') end
  create(id, s)
  return enqueued(name, next, due, offset, id)
end

local answers = {}
for i = 1, items do answers[i] = fire(item(i)) end
return answers
