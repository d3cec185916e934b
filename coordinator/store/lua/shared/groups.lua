-- Groups of runs, of which only a limited number may be ready or running at the same time. The field `group` of a run is
-- "<kind>:<name>". `admitted` has the runs of a group that are ready, suspect or running: they have a place. A queued run without a
-- place waits in the line of its group, by its own score. A script that takes the place of a run gives it to the next run.

-- Return true if no key that a run of a group needs to be queued has a wrong type.
local function are_groups_readable(group)
  return type(redis.pcall('SCARD', admitted_key(group))) == 'number' and type(redis.pcall('ZCARD', line_key(group))) == 'number'
    and type(redis.pcall('SCARD', groups_key())) == 'number'
end

-- Add a run to the queue from which workers claim it. Return false if the queue has a wrong type.
local function make_ready(id, route, counters, score)
  if counters.strikes < SUSPECT_STRIKES then return add_to_ready(id, route, int(score)) end
  if type(redis.pcall('ZCARD', suspect_key(route))) ~= 'number' then return false end
  add_to_suspect(id, route, int(score))
  return true
end

-- Give a place to a run at the head of the line. The run gets the time of its admission as its score, so that the runs of a long
-- line are not claimed before the runs of other groups. Return false, and leave the run in the line, if its ready queue has a wrong
-- type. `paced`: the group has a rate of starts, so that the claim of the run has to be counted.
local function admit(id, group, clock, paced)
  local run = read_named(run_key(id), 'status', 'route', 'counters', 'group', 'beside')
  local counters = run and run.status == QUEUED and run.group == group and run.route and read_counters(run.counters)
  if counters then
    local score = math.floor(counters.score / PRIORITY_STEP) * PRIORITY_STEP + clock
    if not make_ready(id, run.route, counters, score) then return false end
    redis.call('SADD', admitted_key(group), id)
    if paced then
      redis.call('SADD', starting_key(group), id)
      local beside = run.beside or ''
      if not string.find(beside, 'p', 1, true) then redis.call('HSET', run_key(id), 'beside', beside .. 'p') end
    end
  else
    redis.pcall('ZADD', aside_key(), int(clock), 'queued:' .. id)
  end
  redis.call('ZREM', line_key(group), id)
  return true
end

-- Give the free places of a group to the first runs of its line. Return the number of runs that left the line, and true if the
-- line has more runs. If a key has a wrong type, no run is admitted.
local function fill(group, clock)
  local limit, rate = limit_of(group)
  local count = redis.pcall('SCARD', admitted_key(group))
  if not limit or type(count) ~= 'number' or count >= limit then return 0, true end
  local pace = rate and read_pace(group, rate, clock)
  if rate and not pace then return 0, true end
  local room = math.min(limit - count, PLACES_FILLED, pace and pace.left or PLACES_FILLED)
  local ids = redis.pcall('ZRANGE', line_key(group), 0, room)
  if ids.err then return 0, true end
  local admitted = 0
  for i = 1, math.min(room, #ids) do
    if not admit(ids[i], group, clock, pace) then return admitted, true end
    admitted = admitted + 1
  end
  if #ids <= room then
    redis.pcall('SREM', groups_key(), group)
  elseif pace and count + admitted < limit then
    pace.starting = redis.call('SCARD', starting_key(group))
    fill_later(group, pace, clock)
  end
  return admitted, #ids > room
end

-- The score of a new or retried run is the time at which it enters the line. A run that was woken or recovered keeps an older score.
-- If the score is older than this, the time at which the run enters is stored in its field `held`, so that views can show how long it
-- waits. The field is never removed: it belongs to the present wait only if it is later than the time of the score.
local OLDER_MS = 1000

-- Queue a run of a group. A run that has kept its place is ready immediately, with its own score. Any other run joins the line.
local function enter(id, route, counters, group)
  if redis.pcall('SISMEMBER', admitted_key(group), id) == 1 then
    make_ready(id, route, counters, counters.score)
    return
  end
  -- A run that has lost its place, or whose place an older process took, must not use up a start while it is in the line.
  redis.pcall('SREM', starting_key(group), id)
  local clock = server_ms(now)
  if clock - counters.score % PRIORITY_STEP > OLDER_MS then redis.call('HSET', run_key(id), 'held', int(clock)) end
  redis.pcall('ZADD', line_key(group), int(counters.score), id)
  redis.pcall('SADD', groups_key(), group)
  fill(group, clock)
end

-- Take the place of a run that is delayed, waits or has ended, and give the place to the next run of the line. A run without a
-- place leaves the line.
local function leave_group(id, group, clock)
  redis.pcall('SREM', starting_key(group), id)
  if redis.pcall('SREM', admitted_key(group), id) == 1 then
    fill(group, clock)
  else
    redis.pcall('ZREM', line_key(group), id)
  end
end
