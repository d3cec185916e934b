-- Finding the faults of entries of a set or sorted set, and of keys that belong to a run. examine.lua finds the faults of the run
-- itself, which are not reported again here.

local function type_of(key)
  local answer = redis.call('TYPE', key)
  return type(answer) == 'table' and answer.ok or answer
end

local function exists(id) return redis.call('EXISTS', run_key(id)) == 1 end

-- Return the run that an entry names. Entries of deadlines and aside have a word before the id.
local function run_named(place, member)
  if place == 'deadlines' or place == 'aside' then return string.match(member, '^%a+:(.+)$') end
  return member
end

-- Return the fault of an entry and a detail; nil if the entry has no fault.
local function find_stray(place, name, member, clock)
  if place == 'schedules' then
    if redis.call('EXISTS', schedule_key(member)) == 0 then return 'absent', '' end
    return nil
  end
  if place == 'parting' then
    if not read_parting(member) then return 'garbled', '' end
    return nil
  end
  if place == 'aside' then return 'aside', try('ZSCORE', aside_key(), member) or '' end
  if place == 'workers' then
    if redis.call('EXISTS', worker_key(member)) == 0 then return 'stranger', '' end
    return nil
  end
  if place == 'holders' or place == 'turns' then
    local worker = string.match(member, '^(.+)%-%d+$')
    if not worker then return 'garbled', '' end
    if (tonumber(try('ZSCORE', workers_key(), worker)) or 0) == 0 then return 'abandoned', worker end
    return nil
  end
  local id = run_named(place, member)
  if not id or not exists(id) then
    -- The list of ended runs is trimmed some time after their keys have expired.
    local over = place == 'ended' and try('ZSCORE', ended_key(name), member)
    if over and tonumber(over) <= clock + SOON then return nil end
    return 'runless', ''
  end
  local run = inspect_run(id)
  if not run or find_unreadable(run) then return nil end
  if place == 'owned' and run.worker ~= name then return 'elsewhere', run.status end
  if (place == 'admitted' or place == 'line') and run.group ~= name then return 'elsewhere', run.group or '' end
  if place == 'starting' and (run.group ~= name or run.status ~= QUEUED) then return 'elsewhere', run.status end
  if (place == 'ready' or place == 'suspect') and run.route ~= name then return 'elsewhere', run.route end
  if place == 'ended' and run.status ~= name then return 'elsewhere', run.status end
  return nil
end

local function is_still_in(place, name, member)
  if place == 'live' then return is_member(live_key(), member) end
  if place == 'owned' then return is_member(owned_key(name), member) end
  if place == 'admitted' then return is_member(admitted_key(name), member) end
  if place == 'starting' then return is_member(starting_key(name), member) end
  local zsets = {
    workers = workers_key(), ready = ready_key(name), suspect = suspect_key(name), delayed = delayed_key(),
    line = line_key(name), holders = holders_key(name), turns = turns_key(name), waiting = waiting_key(), deadlines = deadlines_key(), aside = aside_key(), parting = parting_key(), ended = ended_key(name), schedules = schedules_key(),
  }
  return is_scored(zsets[place], member)
end

-- Return the key of a family with this name, and the run and the generation if the name contains them.
local function key_of(family, name)
  if family == 'ckpt' then return ckpt_key(name), name end
  if family == 'messages' then
    local id, generation = string.match(name, '^(.+):(%d+)$')
    return id and messages_key(id, generation), id, generation
  end
  if family == 'signals' then return signals_key(name), name end
  if family == 'signal-keys' then return signal_keys_key(name), name end
  if family == 'signal-operations' then return signal_operations_key(name), name end
  if family == 'joins' then return joins_key(name), name end
  if family == 'effects' then return effects_key(name), name end
  if family == 'results' then return results_key(name), name end
  if family == 'output' then return output_key(name), name end
  if family == 'graph-threads' then return graph_threads_key(name), name end
  if family == 'graph' or family == 'graph-index' then
    local owner, thread = string.match(name, '^([^:]+):(.*)$')
    return owner and (family == 'graph' and graph_key(owner, thread) or graph_index_key(owner, thread)), owner
  end
  if family == 'worker' then return worker_key(name) end
  if family == 'schedule' then return schedule_key(name) end
  local kind, key = string.match(name, '^([^:]+):(.*)$')
  return kind and once_key(kind, key)
end

-- Return true for a schedule that no coordinator would fire or remove: the list of schedules has no entry for it, or the entry of an
-- active schedule has no time.
local function is_unwatched(name)
  local when = try('ZSCORE', schedules_key(), name)
  return not when or (try('HGET', schedule_key(name), 'state') == 'active' and tonumber(when) >= FAR_FUTURE)
end

-- The letter of each family in the field `beside` of a run: without it, scripts ignore the key.
local LETTERS = { signals = 's', ['signal-keys'] = 's', ['signal-operations'] = 's', joins = 'r', results = 'r', effects = 'e',
  output = 'o', graph = 'g', ['graph-index'] = 'g', ['graph-threads'] = 'g' }

-- Return the fault of a key that belongs to a run, a worker or a schedule; nil if the key has no fault.
local function find_leak(family, name, expected)
  local key, id, generation = key_of(family, name)
  if not key then return nil end
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then return nil end
  if type_of(key) ~= expected then return 'mistaken' end
  if family == 'worker' then
    return ttl == -1 and not is_scored(workers_key(), name) and 'leaked' or nil
  end
  if family == 'schedule' then return is_unwatched(name) and 'unwatched' or nil end
  if family == 'once' then id = string.match(redis.call('GET', key), '^(%S+) ') end
  if not id or not exists(id) then return ttl == -1 and 'leaked' or nil end
  local beside, status = read_fields(run_key(id), 'beside', 'status')
  local ended = is_ended(status)
  if family == 'once' then return ttl == -1 and ended and 'endless' or nil end
  if family == 'ckpt' then return nil end
  if family == 'messages' then
    local head, unreadable = read_head(id)
    if unreadable then return nil end
    if not head or int(head.generation) ~= generation then return ttl == -1 and 'leaked' or nil end
  end
  if ended then return ttl == -1 and 'endless' or nil end
  if not is_open(status) then return nil end
  if ttl >= 0 then return 'mortal' end
  return LETTERS[family] and not string.find(beside or '', LETTERS[family], 1, true) and 'unnoted' or nil
end
