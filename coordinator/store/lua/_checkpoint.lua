-- The delta of a checkpoint: what is new since the last acknowledged save, and nothing else.
-- A delta is netstrings ("<length>:<bytes>" one after the other), so that any server, also one without cmsgpack, reads it:
--   seq, acked, generation, base, count, chunk, iteration, schema, state mode (same or set), state,
--   phases (netstrings: field, output), drop (netstrings: fields), note, unfinished
local function natural(text) return string.match(text, '^%d+$') and tonumber(text) end

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

local HEAD = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

-- The head of a checkpoint, or nil where there is none. Its second value is true where there is one that can't be read.
local function read_head(id)
  local text = redis.pcall('HGET', ckpt_key(id), 'head')
  if text == false then return nil, false end
  if type(text) ~= 'string' then return nil, true end
  local seq, generation, length, iteration, peak, progress, schema, updated, appended, size = string.match(text, HEAD)
  if not seq then return nil, true end
  return {
    seq = tonumber(seq), generation = tonumber(generation), length = tonumber(length), iteration = tonumber(iteration),
    peak = tonumber(peak), progress = tonumber(progress), schema = tonumber(schema), updated = tonumber(updated),
    appended = tonumber(appended), size = tonumber(size),
  }, false
end

local function write_head(h)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', h.seq, h.generation, h.length, h.iteration, h.peak,
    h.progress, h.schema, h.updated, h.appended, h.size)
end

-- What a delta would do: a plan of writes, or a word that refuses it. Reads only.
local function plan_delta(id, delta)
  local part = netstrings(delta)
  if not part or #part ~= 14 then return nil, 'bad' end
  local head, unreadable = read_head(id)
  if unreadable then return nil, 'unreadable' end
  local seq, acked, generation, base, count = natural(part[1]), natural(part[2]), natural(part[3]), natural(part[4]), natural(part[5])
  local iteration, schema = natural(part[7]), natural(part[8])
  local phases, drop = netstrings(part[11]), netstrings(part[12])
  if not (seq and acked and generation and base and count and iteration and schema and phases and drop) then return nil, 'bad' end
  if schema == 0 or #phases % 2 == 1 or (part[9] ~= 'same' and part[9] ~= 'set') then return nil, 'bad' end
  if type(redis.pcall('HLEN', messages_key(id, int(generation)))) ~= 'number' then return nil, 'unreadable' end
  local fresh = not head or generation > head.generation
  if head and seq == head.seq and generation == head.generation then return { id = id, again = true, head = head }, 'ok' end
  if head and seq < head.seq then return nil, 'old' end
  if acked > (head and head.seq or 0) then return nil, 'gap' end
  if head and generation < head.generation then return nil, 'gap' end
  if fresh and base > 0 then return nil, 'gap' end
  if not fresh and (base > head.length or (acked == 0 and base > 0)) then return nil, 'gap' end
  return {
    -- an owner that has nothing acknowledged while something is here sends everything, in the place of what is here
    id = id, head = head, fresh = fresh, whole = head ~= nil and acked == 0, seq = seq, generation = generation,
    base = base, count = count, chunk = part[6], iteration = iteration, schema = schema, set_state = part[9] == 'set', state = part[10],
    phases = phases, drop = drop, note = part[13], unfinished = part[14],
  }, 'ok'
end

local EMPTY = {
  seq = 0, generation = 0, length = 0, iteration = 0, peak = 0, progress = 0, schema = 0, updated = 0, appended = 0, size = 0,
}

-- Messages ever appended. Another transcript in the place of one (an agent's own compaction) appends nothing.
local function appended_by(plan, head)
  if plan.fresh and plan.head then return head.appended end
  return head.appended + math.max(0, plan.base + plan.count - head.length)
end

-- Whether a save is progress: a new turn, a finished phase, other bytes of state; messages only where there is no loop.
local function progressed(plan, head, appended)
  if plan.iteration > head.peak or #plan.phases > 0 then return true end
  if plan.set_state and plan.state ~= (redis.call('HGET', ckpt_key(plan.id), 'state') or '') then return true end
  return plan.iteration == 0 and appended > head.appended
end

-- Where the run waits is where its checkpoint can be read.
local function follow_schema(id, schema)
  local route = redis.call('HGET', run_key(id), 'route')
  if route then redis.call('HSET', run_key(id), 'route', (string.gsub(route, '@%d+$', '@' .. int(schema)))) end
end

-- Carries out a plan. Answers the progress counter. Nothing here can fail once the plan was made.
local function apply_delta(plan, now)
  local id, ckpt, head = plan.id, ckpt_key(plan.id), plan.head or EMPTY
  if plan.again then
    redis.call('HSET', ckpt, 'head', write_head(head))
    return head.progress
  end
  local appended = appended_by(plan, head)
  local progress = head.progress + (progressed(plan, head, appended) and 1 or 0)
  if plan.head and (plan.fresh or plan.whole) then redis.call('UNLINK', messages_key(id, int(head.generation))) end
  if plan.whole then redis.call('UNLINK', ckpt) end
  if plan.count > 0 then redis.call('HSET', messages_key(id, int(plan.generation)), int(plan.base), plan.chunk) end
  for i = 1, #plan.drop do redis.call('HDEL', ckpt, plan.drop[i]) end
  for i = 1, #plan.phases, 2 do redis.call('HSET', ckpt, plan.phases[i], plan.phases[i + 1]) end
  if plan.set_state then redis.call('HSET', ckpt, 'state', plan.state) end
  if plan.unfinished ~= '' then
    redis.call('HSET', ckpt, 'unfinished', plan.unfinished)
  else
    redis.call('HDEL', ckpt, 'unfinished')
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
