-- fire: move schedules from their expected fire time to the next one, and create their runs.
-- Protects: each fire time creates one run, however many coordinators fire it: the script compares the expected time with the
-- stored one, and the run's id is computed from the fire time. A schedule that was replaced, paused or removed since has another
-- generation and does not fire.
-- Role: coordinator
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, deadlines, delayed, effects, ended, graph, graph_index
-- Keys: graph_threads, groups, inbox, joins, limits, line, live, messages, namespace, once, output, pace, paced
-- Keys: parting, ready, results, routes, run, schedule, schedules, signal_keys, signal_operations, signals, starting
-- Keys: suspect, suspect_bell, unreported, waiters, waiting, wake, worker
-- ARGV: now, grace
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   grace: ms that the handler of a cancelled run has before the cancel is forced
-- EACH: name, generation, expected, at, next, due, offset, id
--   name: name of the schedule
--   generation: the generation of the schedule that the coordinator read
--   expected: the fire time that the schedule waits for; empty: none was computed yet
--   at: the fire time of the run; empty: no run is created
--   next: the fire time after `at`
--   due: when a coordinator fires `next`: the time `next` plus its jitter
--   offset: the offset of the time zone at `next`, in seconds
--   id: id of the run
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings, unreported, cancel, schedule
-- Moves: none -> queued, queued -> cancelled, delayed -> cancelled, waiting -> cancelled
-- Answers: fired, skipped, moved, early, changed, bad, unreadable
--   skipped: no run was created, because the run of the previous fire time has not ended
--   moved: the schedule moved to its next fire time without creating a run
--   early: the fire time has not come yet
local clock = server_ms(now)
note_endings()

local function number(text) return string.find(text, '^%d+$') and tonumber(text) end

-- A value that can't be read would stop the script in the middle.
local function is_readable(schedule)
  return schedule.route and schedule.spec and string.find(schedule.route, ROUTE_PATTERN)
    and string.find(schedule.priority or '', '^-?%d+$')
    and string.find(schedule.expires, '^%d*$') and string.find(schedule.retention, '^%d*$')
    and type(redis.pcall('ZCARD', ready_key(schedule.route))) == 'number'
    and (schedule.expires == '' or type(redis.pcall('ZCARD', deadlines_key())) == 'number')
end

-- Return the run of the previous fire time if it has not ended.
local function read_open_run(id)
  local run = id and read_run(id)
  local counters = run and read_counters(run.counters)
  if not counters or is_ended(run.status) then return nil end
  return run, counters
end

local function move(name, next, due, offset)
  redis.call('HSET', schedule_key(name), 'next', next, 'due', due, 'offset', offset)
  redis.call('HDEL', schedule_key(name), 'why')
  look_again_at(name, due)
end

-- Create the run in the same way as enqueue.lua does.
local function create(id, schedule)
  local score, created = int(clock - tonumber(schedule.priority) * PRIORITY_STEP), int(clock)
  redis.call('HSET', run_key(id), 'status', QUEUED, 'route', schedule.route, 'counters', initial_counters(score, created),
    split_spec(schedule.spec))
  if has_schema(schedule.route) then redis.call('HSET', run_key(id), 'asked', string.match(schedule.route, '%d+$')) end
  if schedule.retention ~= '' then redis.call('HSET', run_key(id), 'retention', schedule.retention) end
  if schedule.expires ~= '' then
    redis.call('HSET', run_key(id), 'expires', int(clock + tonumber(schedule.expires)))
    redis.call('ZADD', deadlines_key(), int(clock + tonumber(schedule.expires)), 'expire:' .. id)
    ring(coordinator_bell_key())
  end
  add_to_ready(id, schedule.route, score)
end

local function answer_fired(name, next, due, offset, id)
  redis.call('HSET', schedule_key(name), 'last', id)
  redis.call('HINCRBY', schedule_key(name), 'fired', 1)
  move(name, next, due, offset)
  return { 'fired', id }
end

local function fire(name, generation, expected, at, next, due, offset, id)
  local schedule = read_schedule(name)
  if not schedule or schedule.generation ~= generation or schedule.state ~= 'active' then return { 'changed', '' } end
  if schedule.next ~= expected then
    if id == '' or type(redis.pcall('HGET', run_key(id), 'status')) ~= 'string' then return { 'changed', '' } end
    redis.call('HSET', schedule_key(name), 'generation', generation)
    return { 'fired', id }
  end
  if not number(next) or not number(due) or (at ~= '' and not number(at)) or number(next) <= (number(expected) or 0) then
    return { 'bad', '' }
  end
  if (number(schedule.due) or 0) > clock or (number(at) or 0) > clock then return { 'early', '' } end
  if at == '' then
    move(name, next, due, offset)
    return { 'moved', '' }
  end
  local status = redis.pcall('HGET', run_key(id), 'status')
  if type(status) == 'string' then return answer_fired(name, next, due, offset, id) end
  if status or not is_readable(schedule) then return { 'unreadable', '' } end
  local before, counters
  if schedule.overlap ~= 'allow' then before, counters = read_open_run(schedule.last) end
  if before and schedule.overlap == 'skip' then
    redis.call('HINCRBY', schedule_key(name), 'skipped', 1)
    move(name, next, due, offset)
    return { 'skipped', schedule.last }
  end
  if before then cancel_run(schedule.last, before, counters, clock, grace, 'cancelled: the next run of its schedule began') end
  create(id, schedule)
  return answer_fired(name, next, due, offset, id)
end

local answers = {}
for i = 1, items do answers[i] = fire(item(i)) end
return answers
