-- What is wrong with an entry of a set or a zset, or with a key that belongs to a run. What a look at the run itself tells is
-- not told again here.
local WEEK = 604800000
local NEVER = 9007199254740991 -- as _schedule.lua writes it for one that is paused

local function type_of(key)
  local answer = redis.call('TYPE', key)
  return type(answer) == 'table' and answer.ok or answer
end

local function there(id) return redis.call('EXISTS', run_key(id)) == 1 end

-- The run that an entry names: deadlines and aside put a word before it.
local function run_named(place, member)
  if place == 'deadlines' or place == 'aside' then return string.match(member, '^%a+:(.+)$') end
  return member
end

-- A word and a detail, or nil.
local function stray(place, name, member, clock)
  if place == 'schedules' then
    if redis.call('EXISTS', schedule_key(member)) == 0 then return 'absent', '' end
    return nil
  end
  if place == 'aside' then return 'aside', ask('ZSCORE', aside_key(), member) or '' end
  if place == 'workers' then
    if redis.call('EXISTS', worker_key(member)) == 0 then return 'stranger', '' end
    return nil
  end
  local id = run_named(place, member)
  if not id or not there(id) then
    -- a list of ended runs is trimmed some time after they are gone
    local over = place == 'ended' and ask('ZSCORE', ended_key(name), member)
    if over and tonumber(over) <= clock + SOON then return nil end
    return 'runless', ''
  end
  local run = look_at(id)
  if not run or unreadable(run) then return nil end
  if place == 'owned' and run.worker ~= name then return 'elsewhere', run.status end
  if (place == 'ready' or place == 'suspect') and run.route ~= name then return 'elsewhere', run.route end
  if place == 'ended' and run.status ~= name then return 'elsewhere', run.status end
  return nil
end

local function still_in(place, name, member)
  if place == 'live' then return member_of(live_key(), member) end
  if place == 'owned' then return member_of(owned_key(name), member) end
  local zsets = {
    workers = workers_key(), ready = ready_key(name), suspect = suspect_key(name), delayed = delayed_key(),
    deadlines = deadlines_key(), aside = aside_key(), ended = ended_key(name), schedules = schedules_key(),
  }
  return scored(zsets[place], member)
end

local function key_of(family, name)
  if family == 'ckpt' then return ckpt_key(name), name end
  if family == 'messages' then
    local id, generation = string.match(name, '^(.+):(%d+)$')
    return id and messages_key(id, generation), id, generation
  end
  if family == 'worker' then return worker_key(name) end
  if family == 'schedule' then return schedule_key(name) end
  local kind, key = string.match(name, '^([^:]+):(.*)$')
  return kind and once_key(kind, key)
end

-- A schedule that no coordinator would ever look at, though it is to fire, or to be forgotten.
local function unwatched(name)
  local when = ask('ZSCORE', schedules_key(), name)
  return not when or (ask('HGET', schedule_key(name), 'state') == 'active' and tonumber(when) >= NEVER)
end

-- What is wrong with a key that belongs to a run or a worker: a word, or nil.
local function leaked(family, name, expected)
  local key, id, generation = key_of(family, name)
  if not key then return nil end
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then return nil end
  if type_of(key) ~= expected then return 'mistaken' end
  if family == 'worker' then
    return ttl == -1 and not scored(workers_key(), name) and 'leaked' or nil
  end
  if family == 'schedule' then return unwatched(name) and 'unwatched' or nil end
  if family == 'once' then id = string.match(redis.call('GET', key), '^(%S+) ') end
  if not id or not there(id) then return ttl == -1 and 'leaked' or nil end
  local status = ask('HGET', run_key(id), 'status')
  if family == 'once' then return ttl == -1 and OVER[status] and 'endless' or nil end
  if family == 'ckpt' then return nil end
  local head, spoilt = read_head(id)
  if spoilt then return nil end
  if not head or int(head.generation) ~= generation then return ttl == -1 and 'leaked' or nil end
  if OVER[status] then return ttl == -1 and 'endless' or nil end
  return OPEN[status] and ttl >= 0 and 'mortal' or nil
end
