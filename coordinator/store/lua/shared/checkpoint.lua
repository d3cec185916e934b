-- Saving a checkpoint. A save is a delta: it has only the changes since the last acknowledged save.
-- A delta is a row of netstrings ("<length>:<bytes>"), which every server can read, with or without cmsgpack. Its parts and their
-- order are declared in store/formats.py, and DELTA_NAMES is the list of their names.

local function natural(text) return string.match(text, '^%d+$') and tonumber(text) end

-- Return the parts of a row of netstrings; nil if the text is not one.
local function netstrings(text)
  local parts, n, from, size = {}, 0, 1, #text
  while from <= size do
    local colon = string.find(text, ':', from, true)
    local length = colon and natural(string.sub(text, from, colon - 1))
    if not length or colon + length > size then return nil end
    n = n + 1
    parts[n] = string.sub(text, colon + 1, colon + length)
    from = colon + length + 1
  end
  return parts
end

-- Return the head of a checkpoint; nil if there is none or it can't be read. The second value is true if it can't be read.
local function read_head(id)
  local text = redis.pcall('HGET', ckpt_key(id), 'head')
  if text == false then return nil, false end
  if type(text) ~= 'string' then return nil, true end
  local head = parse_head(text)
  return head, head == nil
end

-- Return the field of an effect in the key `effects`; nil if the field of a delta belongs to the checkpoint. A delta carries effects
-- among its phases. They are stored in a key of their own, because they outlive the checkpoint: see workers/handlers/operations/effects.py.
local function effect_field(field) return string.match(field, '^effect:(.+)$') end

local function has_effect(fields, step)
  for i = 1, #fields, step do
    if effect_field(fields[i]) then return true end
  end
  return false
end

-- Return true if a run has effects according to its field `beside`. A run whose effects were all withdrawn or forgotten has none.
local function knows_effects(beside) return beside and string.find(beside, 'e', 1, true) ~= nil end

-- Return true if a delta has effects, and the key of the effects is lost or has another type. A save must not create a lost key
-- again: the effects that are missing in it would be carried out twice.
local function are_effects_damaged(id, phases, drop)
  if not has_effect(phases, 2) and not has_effect(drop, 1) then return false end
  local count = redis.pcall('HLEN', effects_key(id))
  if count == 0 then return knows_effects(redis.call('HGET', run_key(id), 'beside')) end
  return type(count) ~= 'number'
end

-- Check a delta against the stored checkpoint. Return a plan of writes and 'ok', or nil and the answer that refuses the delta. This
-- function only reads, so that a script can refuse the delta before it writes anything.
local function plan_delta(id, delta)
  local parts = netstrings(delta)
  if not parts or #parts < DELTA_PARTS or #parts > DELTA_PARTS + 2 then return nil, 'bad' end
  local DELTA_NAMES = unpack(parts)
  local more, output = parts[DELTA_PARTS + 1], parts[DELTA_PARTS + 2] -- nil: it stays as it is
  local head, unreadable = read_head(id)
  if unreadable then return nil, 'unreadable' end
  seq, acked, generation, base, count = natural(seq), natural(acked), natural(generation), natural(base), natural(count)
  iteration, schema, phases, drop = natural(iteration), natural(schema), netstrings(phases), netstrings(drop)
  if not (seq and acked and generation and base and count and iteration and schema and phases and drop) then return nil, 'bad' end
  if schema == 0 or #phases % 2 == 1 or (state_mode ~= 'same' and state_mode ~= 'set') then return nil, 'bad' end
  if type(redis.pcall('HLEN', messages_key(id, int(generation)))) ~= 'number' then return nil, 'unreadable' end
  if are_effects_damaged(id, phases, drop) then return nil, 'unreadable' end
  local fresh = not head or generation > head.generation
  if head and seq == head.seq and generation == head.generation then return { id = id, again = true, head = head, output = output }, 'ok' end
  if head and seq < head.seq then return nil, 'old' end
  if acked > (head and head.seq or 0) then return nil, 'gap' end
  if head and generation < head.generation then return nil, 'gap' end
  if fresh and base > 0 then return nil, 'gap' end
  if not fresh and (base > head.length or (acked == 0 and base > 0)) then return nil, 'gap' end
  return {
    -- whole: no save of this owner was acknowledged yet, so it sent its whole checkpoint, which replaces the stored one.
    id = id, head = head, fresh = fresh, whole = head ~= nil and acked == 0, seq = seq, generation = generation,
    base = base, count = count, chunk = chunk, iteration = iteration, schema = schema, set_state = state_mode == 'set',
    state = state, phases = phases, drop = drop, note = note, unfinished = unfinished, more = more, output = output,
  }, 'ok'
end

-- Return the number of messages ever appended. A new transcript in the place of an old one (an agent's own compaction) appends
-- none.
local function count_appended(plan, head)
  if plan.fresh and plan.head then return head.appended end
  return head.appended + math.max(0, plan.base + plan.count - head.length)
end

-- Return true if a save is progress: a new iteration, a finished phase, or another state. New messages count only for a handler
-- that has no iterations.
local function is_progress(plan, head, appended)
  if plan.iteration > head.peak or #plan.phases > 0 then return true end
  if plan.set_state and plan.state ~= (redis.call('HGET', ckpt_key(plan.id), 'state') or '') then return true end
  return plan.iteration == 0 and appended > head.appended
end

-- Change the run's route to the schema of its checkpoint, so that it waits for workers that can read it.
local function follow_schema(id, schema)
  local route = redis.call('HGET', run_key(id), 'route')
  if route then redis.call('HSET', run_key(id), 'route', (string.gsub(route, '@%d+$', '@' .. int(schema)))) end
end

-- Note in the run's field `beside` that the run has a key beside its own.
local function add_beside(id, letter)
  local beside = redis.call('HGET', run_key(id), 'beside') or ''
  if not string.find(beside, letter, 1, true) then redis.call('HSET', run_key(id), 'beside', beside .. letter) end
end

-- Note in the run's field `beside` that the run has no effects. From then on, a missing key of effects is not a lost one.
local function note_no_effects(id)
  local beside = string.gsub(redis.call('HGET', run_key(id), 'beside') or '', 'e', '')
  if beside ~= '' then redis.call('HSET', run_key(id), 'beside', beside) else redis.call('HDEL', run_key(id), 'beside') end
end

-- Remove and write the fields of phases, waits and effects that a plan names.
local function apply_fields(plan, ckpt)
  local has_effects, withdrawn = false, 0
  for i = 1, #plan.drop do
    local effect = effect_field(plan.drop[i])
    local dropped = redis.call('HDEL', effect and effects_key(plan.id) or ckpt, effect or plan.drop[i])
    if effect then withdrawn = withdrawn + dropped end
  end
  for i = 1, #plan.phases, 2 do
    local effect = effect_field(plan.phases[i])
    has_effects = has_effects or effect ~= nil
    redis.call('HSET', effect and effects_key(plan.id) or ckpt, effect or plan.phases[i], plan.phases[i + 1])
  end
  if has_effects then
    add_beside(plan.id, 'e')
  elseif withdrawn > 0 and redis.call('EXISTS', effects_key(plan.id)) == 0 then
    note_no_effects(plan.id)
  end
end

-- Carry out a plan and return the progress counter. These writes can't fail, because plan_delta has checked the plan.
local function apply_delta(plan, now)
  local id, ckpt, head = plan.id, ckpt_key(plan.id), plan.head or EMPTY_HEAD
  if plan.again then
    redis.call('HSET', ckpt, 'head', write_head(head))
    return head.progress
  end
  local appended = count_appended(plan, head)
  local progress = head.progress + (is_progress(plan, head, appended) and 1 or 0)
  if plan.head and (plan.fresh or plan.whole) then redis.call('UNLINK', messages_key(id, int(head.generation))) end
  local more = plan.more
  if plan.whole then
    more = more or redis.call('HGET', ckpt, 'more')
    redis.call('UNLINK', ckpt)
  end
  if plan.count > 0 then redis.call('HSET', messages_key(id, int(plan.generation)), int(plan.base), plan.chunk) end
  apply_fields(plan, ckpt)
  if plan.set_state then redis.call('HSET', ckpt, 'state', plan.state) end
  if plan.unfinished ~= '' then
    redis.call('HSET', ckpt, 'unfinished', plan.unfinished)
  else
    redis.call('HDEL', ckpt, 'unfinished')
  end
  if more == '' then
    redis.call('HDEL', ckpt, 'more')
  elseif more then
    redis.call('HSET', ckpt, 'more', more)
  end
  redis.call('HSET', ckpt, 'head', write_head({
    seq = plan.seq, generation = plan.generation, length = plan.base + plan.count, iteration = plan.iteration,
    peak = math.max(head.peak, plan.iteration), progress = progress, schema = plan.schema, updated = now,
    appended = appended, size = ((plan.fresh or plan.whole) and 0 or head.size) + #plan.chunk,
  }))
  if plan.note ~= '' then redis.call('HSET', run_key(id), 'note', plan.note) end
  if head.schema ~= plan.schema then follow_schema(id, plan.schema) end
  return progress
end

local function drop_checkpoint(id)
  local head = read_head(id)
  if head then redis.call('UNLINK', messages_key(id, int(head.generation))) end
  redis.call('UNLINK', ckpt_key(id))
end
