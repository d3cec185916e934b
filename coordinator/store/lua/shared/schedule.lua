-- Reading a schedule, and deciding when a coordinator looks at it next.

-- Return a schedule; nil if there is none. The second value is true if the key has another type.
local function read_schedule(name)
  local schedule = read_named(schedule_key(name), 'generation', 'state', 'after', 'next', 'due', 'last', 'rules', 'overlap',
    'route', 'spec', 'priority', 'expires', 'retention', 'offset')
  if not schedule then return nil, true end
  if not schedule.generation then return nil end
  for _, field in ipairs({ 'after', 'next', 'due', 'expires', 'retention' }) do schedule[field] = schedule[field] or '' end
  schedule.offset = schedule.offset or '0'
  return schedule
end

-- Set the time at which a coordinator looks at a schedule next. `ms` is text.
local function look_again_at(name, ms) redis.call('ZADD', schedules_key(), ms, name) end

-- Check a change of a schedule by a client that has seen the generation `seen`. Return the answer that ends the call, or nil if the
-- change may be made. If the same change was carried out before, the answer is ok again.
local function refuse_change(schedule, name, seen, generation)
  if not schedule or schedule.state == 'removed' then return { 'missing' } end
  if schedule.generation == generation then
    redis.call('HSET', schedule_key(name), 'generation', generation)
    return { 'ok' }
  end
  if schedule.generation ~= seen then return { 'changed', schedule.generation } end
end
