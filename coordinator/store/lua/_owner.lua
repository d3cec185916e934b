-- Who executes a record's run. An owner is <nonce>-<lease in ms>; its deadline is kept in record_owners.
local function lease_of(owner) return tonumber(string.match(owner, '%-(%d+)$')) or 0 end

-- A deadline further away than one lease comes from a clock that was ahead: it becomes one lease.
local function lives(owner, clock)
  local deadline = redis.call('ZSCORE', record_owners_key(), owner)
  if not deadline then return false end
  local latest = clock + lease_of(owner)
  if tonumber(deadline) > latest then redis.call('ZADD', record_owners_key(), int(latest), owner) end
  return tonumber(deadline) > clock
end

local function renew(owner, clock)
  redis.call('ZADD', record_owners_key(), int(clock + lease_of(owner)), owner)
  redis.call('PEXPIRE', record_owners_key(), 86400000)
end

-- Those from whom the run was taken, as ' <owner> <owner> '. Only the last few can still have a call under way.
local function was_taken_from(past, owner) return past and string.find(past, ' ' .. owner .. ' ', 1, true) ~= nil end
local function taken_from(past, before, owner)
  local names = {}
  for name in string.gmatch((past or '') .. ' ' .. before, '%S+') do
    if name ~= owner and name ~= names[#names] then names[#names + 1] = name end
  end
  return ' ' .. table.concat(names, ' ', math.max(1, #names - 7)) .. ' '
end

-- Whether an owner may write: not over the head of another that is alive, and not after the run was taken from it.
local function may_write(record_owner, past, owner, clock)
  if not record_owner or record_owner == owner then return true end
  return not was_taken_from(past, owner) and not lives(record_owner, clock)
end
