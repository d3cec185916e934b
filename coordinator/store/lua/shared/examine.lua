-- Finding the faults of a run. A run must be in exactly one set: the one that belongs to its status. These functions only read,
-- and accept keys of any type.
local SOON = 60000 -- ms; a key that expires within this time has no fault

-- Return the reply to a command; nil if the key has another type. The doctor reports the wrong type as a fault of the key.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end

local function is_scored(key, member) return try('ZSCORE', key, member) and true or false end
local function is_member(key, member) return try('SISMEMBER', key, member) == 1 end

-- Return the fields from which the faults of a run are found; nil if its key has another type. The spec itself is not read, only
-- whether it exists: dozens of specs of a megabyte in one script would delay every other caller.
local function inspect_run(id)
  local run = read_named(run_key(id), 'status', 'token', 'route', 'counters', 'retention', 'once', 'cancel', 'expires',
    'ended', 'kill', 'wait', 'group', 'spend', 'beside', 'joined')
  if not run then return nil end
  run.spec = redis.call('HEXISTS', run_key(id), 'spec') == 1
  run.worker = run.token and worker_of(run.token)
  run.over = is_ended(run.status)
  run.open = is_open(run.status)
  run.routed = run.route and string.find(run.route, ROUTE_PATTERN)
  run.counted = read_counters(run.counters)
  return run
end

-- Return the name of the first part of a run that can't be read, and its stored value; nil if every part can be read.
local function find_unreadable(run)
  if not run.open and not run.over then return 'status ' .. (run.status or '') end
  if not run.routed then return 'route ' .. (run.route or '') end
  if not run.counted then return 'counters ' .. (run.counters or '') end
  if run.open and not run.spec then return 'spec' end
  return nil
end

-- Return false if the field `spend` can't be right: it can't be read, a number is too large to be exact, or the part that was added to
-- the parent is more than the run has spent. A field that can't be read is written back as other text.
local function is_spend_sound(text)
  local spend = read_spend(text)
  local usd, tokens, requests = sum_spend(spend)
  if write_spend(spend) ~= text then return false end
  return spend.rolled_usd <= usd and spend.rolled_tokens <= tokens and spend.rolled_requests <= requests
end

-- Return the detail of a damaged field `spend`; nil if the field has no fault.
local function find_misspent(run)
  if run.spend then return not is_spend_sound(run.spend) and string.sub(run.spend, 1, 80) or nil end
  return string.find(run.beside or '', 'b', 1, true) and '' or nil
end

-- Return the letters that are missing in the field `beside`, of those that say that the run has another field.
local function find_missing_letters(run)
  local letters = {}
  for letter, field in pairs({ b = 'spend', j = 'joined', l = 'group' }) do
    if run[field] and not string.find(run.beside or '', letter, 1, true) then letters[#letters + 1] = letter end
  end
  table.sort(letters)
  return table.concat(letters)
end

-- Return the parent of an ended child, if a step of the parent still waits for the ending.
local function find_uninformed_parent(run)
  local parent, life, base, index = string.match(run.joined or '', JOINED_PATTERN)
  if not parent then return nil end
  local counters, status = read_fields(run_key(parent), 'counters', 'status')
  if not is_open(status) or string.match(counters or '', '^%d+') ~= life then return nil end
  local spawned = read_join(parent, base)
  if not spawned or tonumber(index) >= spawned then return nil end
  return try('HEXISTS', results_key(parent), base .. ':' .. index) == 0 and parent or nil
end

-- Return all faults of a run as { fault, detail, fault, detail, … }, and the run; nil if there is no such run.
local function find_faults(id)
  local key, found = run_key(id), {}
  if redis.call('EXISTS', key) == 0 then return nil end
  local run = inspect_run(id)
  if not run then return { 'mistaken', '' } end
  local function add(fault, detail)
    found[#found + 1] = fault
    found[#found + 1] = detail or ''
  end
  local part = find_unreadable(run)
  if part then
    add('unreadable', part)
    return found, run
  end

  local home
  if run.status == QUEUED then home = run.counted.strikes >= SUSPECT_STRIKES and 'suspect' or 'ready' end
  local admitted = run.group and is_member(admitted_key(run.group), id)
  if home and run.group and not admitted then home = 'line' end
  if run.status == DELAYED then home = 'delayed' end
  if run.status == WAITING then home = 'waiting' end
  local inside = {
    ready = is_scored(ready_key(run.route), id), suspect = is_scored(suspect_key(run.route), id),
    delayed = is_scored(delayed_key(), id), waiting = is_scored(waiting_key(), id),
    line = run.group and is_scored(line_key(run.group), id),
  }
  if home and not inside[home] then add('lineless', home) end
  for _, queue in ipairs({ 'ready', 'suspect', 'delayed', 'waiting', 'line' }) do
    if inside[queue] and queue ~= home then add('twice', queue) end
  end
  if home == 'line' then
    if inside.line and not is_member(groups_key(), run.group) then add('unswept', run.group) end
  elseif run.status == QUEUED and inside[home] and not is_member(routes_key(), run.route) then
    add('unrouted', run.route)
  end
  if run.status == RUNNING and run.group and not admitted then add('unadmitted', run.group) end
  if admitted and run.status ~= RUNNING and run.status ~= QUEUED then add('admitted', run.group) end
  if run.status == WAITING then
    local condition = read_wait(run)
    -- Only the topics count here: a coordinator looks for children that have ended and for deadlines that have passed.
    local reason = condition and find_reason(id, { topics = condition.topics, steps = {} }, 0)
    local wakes, ends = tonumber(try('ZSCORE', waiting_key(), id)), condition and condition.deadline or FAR_FUTURE
    if not condition then
      add('aimless', run.wait or '')
    elseif reason then
      add('unwoken', reason)
    elseif wakes and (condition.joins and (wakes > ends or wakes >= FAR_FUTURE) or not condition.joins and wakes ~= ends) then
      add('mistimed')
    end
  end

  if run.status == RUNNING then
    if not run.worker then
      add('tokenless', run.token or '')
    elseif not is_scored(workers_key(), run.worker) then
      add('ownerless', run.worker)
    elseif not is_member(owned_key(run.worker), id) then
      add('unowned', run.worker)
    end
    if not is_member(live_key(), id) then add('unlive') end
    if run.cancel and not is_scored(deadlines_key(), 'cancel:' .. id) then add('timeless', 'cancel') end
  elseif run.token then
    add('held', run.worker or run.token)
  end
  if home and run.expires and not is_scored(deadlines_key(), 'expire:' .. id) then add('timeless', 'expire') end
  local misspent, letters = find_misspent(run), find_missing_letters(run)
  if misspent then add('misspent', misspent) end
  if run.open and letters ~= '' then add('unnoted', letters) end

  local ttl, saved = redis.call('PTTL', key), redis.call('PTTL', ckpt_key(id))
  if run.open then
    if ttl >= 0 then add('mortal', 'run') end
    if saved >= 0 then add('mortal', 'checkpoint') end
    return found, run
  end
  if is_member(live_key(), id) then add('live') end
  local parent = find_uninformed_parent(run)
  if parent then add('untold', parent) end
  if ttl < 0 then add('endless', 'run') elseif saved == -1 then add('endless', 'checkpoint') end
  if ttl > SOON and run.spec and not is_scored(ended_key(run.status), id) then add('unlisted', run.status) end
  return found, run
end
