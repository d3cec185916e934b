-- Reading a schedule, and when it is looked at next. Uses fields.
local NEVER = '9007199254740991'

-- nil where there is none, and true beside it where something else is in its place.
local function read_schedule(name)
  local v = fields(schedule_key(name), 'generation', 'state', 'after', 'next', 'due', 'last', 'rules', 'overlap', 'route', 'spec',
    'priority', 'expires', 'retention', 'offset')
  if not v then return nil, true end
  if not v[1] then return nil end
  return { generation = v[1], state = v[2], after = v[3] or '', next = v[4] or '', due = v[5] or '', last = v[6], rules = v[7],
    overlap = v[8], route = v[9], spec = v[10], priority = v[11], expires = v[12] or '', retention = v[13] or '', offset = v[14] or '0' }
end

local function look_at(name, ms) redis.call('ZADD', schedules_key(), ms, name) end

-- The guards of a change by a user, who has seen a generation: its answer, or nil where the change may be made.
local function change_refused(schedule, name, seen, generation)
  if not schedule or schedule.state == 'removed' then return { 'missing' } end
  if schedule.generation == generation then
    redis.call('HSET', schedule_key(name), 'generation', generation)
    return { 'ok' }
  end
  if schedule.generation ~= seen then return { 'changed', schedule.generation } end
end
