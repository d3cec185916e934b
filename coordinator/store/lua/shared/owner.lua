-- The owner of a record: the process that executes its run. An owner is "<nonce>-<lease in ms>". Its deadline is in
-- record_owners.

-- A lease of more than a year is not valid. The server could not store its end, and would fail after other writes.
local LONGEST_LEASE_MS = 366 * 86400 * 1000
local function lease_of(owner) return math.min(tonumber(string.match(owner, '%-(%d+)$')) or 0, LONGEST_LEASE_MS) end

-- Return true while the owner's lease holds. A deadline further away than one lease comes from a clock that was ahead: it is
-- shortened to one lease.
local function check_lease(owner, clock)
  local deadline = redis.call('ZSCORE', record_owners_key(), owner)
  if not deadline then return false end
  local latest = clock + lease_of(owner)
  if tonumber(deadline) > latest then redis.call('ZADD', record_owners_key(), int(latest), owner) end
  return tonumber(deadline) > clock
end

local function renew_lease(owner, clock)
  redis.call('ZADD', record_owners_key(), int(clock + lease_of(owner)), owner)
  local kept = math.max(OWNERS_MS, lease_of(owner))
  if redis.call('PTTL', record_owners_key()) < kept then redis.call('PEXPIRE', record_owners_key(), int(kept)) end
end

-- The owners that lost the run, as ' <owner> <owner> '. Eight are enough: only the last few can still have a call under way.
local function is_past_owner(past, owner) return past and string.find(past, ' ' .. owner .. ' ', 1, true) ~= nil end
local function add_past_owner(past, before, owner)
  local names = {}
  for name in string.gmatch((past or '') .. ' ' .. before, '%S+') do
    if name ~= owner and name ~= names[#names] then names[#names + 1] = name end
  end
  return ' ' .. table.concat(names, ' ', math.max(1, #names - 7)) .. ' '
end

-- Return true if an owner may write the record: no other live owner has the run, and no other owner has taken the run from it.
local function may_write(record_owner, past, owner, clock)
  if not record_owner or record_owner == owner then return true end
  return not is_past_owner(past, owner) and not check_lease(record_owner, clock)
end
