-- Reading a schedule, and deciding when a coordinator checks it next.

-- Return a schedule; nil if there is none. The second value is true if the key has another type.
local function read_schedule(name)
  local schedule = read_named(schedule_key(name), 'generation', 'state', 'after', 'next', 'due', 'last', 'rules', 'overlap',
    'route', 'spec', 'priority', 'expires', 'retention', 'offset', 'past')
  if not schedule then return nil, true end
  if not schedule.generation then return nil end
  for _, field in ipairs({ 'after', 'next', 'due', 'expires', 'retention' }) do schedule[field] = schedule[field] or '' end
  schedule.offset = schedule.offset or '0'
  return schedule
end

-- Set the time at which a coordinator checks a schedule next. `ms` is text.
local function look_again_at(name, ms) redis.call('ZADD', schedules_key(), ms, name) end

-- Return true if a change was carried out before. It may have been replaced by a later one since. `past` has the generations of the
-- last changes, newest first.
local PAST_CHANGES = 8
local function is_repeated(schedule, name, generation)
  if not schedule then return false end
  local found = schedule.generation == generation
  for past in string.gmatch(schedule.past or '', '%S+') do found = found or past == generation end
  if found then redis.call('HSET', schedule_key(name), 'generation', schedule.generation) end
  return found
end

-- Return the field `past` for the next change.
local function extend_past(schedule)
  local kept = { schedule.generation }
  for past in string.gmatch(schedule.past or '', '%S+') do
    if #kept < PAST_CHANGES then kept[#kept + 1] = past end
  end
  return table.concat(kept, ' ')
end

-- Check a change by a user who has seen a certain generation. Return the answer that ends the call, or nil if the change may be
-- made. The call of a change that was carried out before is answered ok again.
local function refuse_change(schedule, name, seen, generation)
  if is_repeated(schedule, name, generation) then return { 'ok' } end
  if not schedule or schedule.state == 'removed' then return { 'missing' } end
  if schedule.generation ~= seen then return { 'changed', schedule.generation } end
end
