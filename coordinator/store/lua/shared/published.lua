-- The limits that workers publish for their handlers. Each worker stores the limits of its handlers in its entry, so the limit of a
-- kind depends on the live workers: it is the limit in the newest version of the code that has a live worker. The age of a version
-- is the age of its oldest live worker, so an old worker that is restarted in the middle of a deploy does not make its version new,
-- and a deploy or its undoing ends with the limit of the version that is left. If no live worker has the kind, the last limit
-- stays.

-- Return the limits of handlers, by kind, from their text: <kind>=<limit>, separated by spaces. A limit is the number of places, or
-- '-' for no limit, and the rate of starts if there is one: "2,10/60000/1".
local function read_published(limits)
  local by_kind = {}
  for kind, limit in string.gmatch(limits, '([^%s=]+)=(%S+)') do by_kind[kind] = limit end
  return by_kind
end

local function is_published(kind, limit)
  local at_once, rate = unpack(redis.call('HMGET', limits_key(), 'handler:' .. kind, 'rate:handler:' .. kind))
  return at_once and at_once .. (rate and ',' .. string.gsub(rate, ' ', '/') or '') == limit
end

local function write_published(kind, limit)
  if is_published(kind, limit) then return end
  local at_once, rate = string.match(limit, '^([^,]+),?(.*)$')
  redis.call('HSET', limits_key(), 'handler:' .. kind, at_once or '-')
  if rate and rate ~= '' then
    redis.call('HSET', limits_key(), 'rate:handler:' .. kind, (string.gsub(rate, '/', ' ')))
  else
    redis.call('HDEL', limits_key(), 'rate:handler:' .. kind)
  end
  mark_limited(kind)
end

-- Read the limits of all live workers, and publish the limit of the newest version of each kind. The field `mixed` says that live
-- workers publish different limits for a kind, so that the next worker that joins or leaves may change the limit of the kind.
local function publish_limits()
  local members, oldest = {}, {}
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers_key(), 1, '+inf')) do
    local code, joined, limits = read_fields(worker_key(worker), 'code', 'joined', 'limits')
    if code and limits then
      joined = tonumber(joined) or 0
      oldest[code] = math.min(oldest[code] or joined, joined)
      local member = members[code .. ' ' .. limits]
      if not member or joined > member.joined then members[code .. ' ' .. limits] = { code = code, joined = joined, limits = limits } end
    end
  end
  local ordered, published, mixed = {}, {}, false
  for _, member in pairs(members) do ordered[#ordered + 1] = member end
  table.sort(ordered, function(a, b)
    if oldest[a.code] ~= oldest[b.code] then return oldest[a.code] < oldest[b.code] end
    if a.joined ~= b.joined then return a.joined < b.joined end
    return a.code .. a.limits < b.code .. b.limits
  end)
  for _, member in ipairs(ordered) do
    for kind, limit in pairs(read_published(member.limits)) do
      mixed = mixed or published[kind] and published[kind] ~= limit
      published[kind] = limit
    end
  end
  for kind, limit in pairs(published) do write_published(kind, limit) end
  if mixed then redis.call('HSET', limits_key(), 'mixed', '1') else redis.call('HDEL', limits_key(), 'mixed') end
end

-- Publish the limits again after a worker has left or was condemned, if the live workers do not all publish the same limits.
local function publish_remaining_limits()
  if redis.pcall('HGET', limits_key(), 'mixed') == '1' then publish_limits() end
end

-- Publish the limits of a worker that has joined. If all workers publish the same limits, no other worker has to be read.
local function publish_joined_limits(limits)
  if type(redis.pcall('HLEN', limits_key())) ~= 'number' then return end
  local differs = redis.call('HGET', limits_key(), 'mixed') == '1'
  for kind, limit in pairs(read_published(limits)) do
    differs = differs or not is_published(kind, limit)
  end
  if differs then publish_limits() end
end
