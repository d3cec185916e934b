-- Deciding whether a pause, an unpause, or a change of a limit or rate is still valid. Each change has its own operation id, and says
-- what its caller has seen: "<operation of the last change>@<the server's time in ms>", which an earlier answer told it. The last
-- changes are stored, newest first, as "<operation>=<answer>", for longer than a caller's knowledge is valid. So a call that arrives
-- late finds either a later change, or that its knowledge is too old.
local PAST_CHANGES = 8

-- Return the answer that ends the call, or nil and the changes if the change may be made. The call of a change that was made before
-- gets its first answer, whatever has changed since.
local function check_change(name, seen, operation)
  local changes = redis.pcall('GET', pauses_key(name))
  if type(changes) ~= 'string' then changes = '' end
  for made, answer in string.gmatch(changes, '(%S+)=(%a+)') do
    if made == operation then
      redis.call('SET', pauses_key(name), changes, 'PX', REMOVED_MS)
      return { answer }
    end
  end
  -- The changes expire by the server's clock, so this clock decides here, also in a namespace with the test clock.
  local seconds, microseconds = unpack(redis.call('TIME'))
  local clock = seconds * 1000 + math.floor(microseconds / 1000)
  local newest = string.match(changes, '^(%S+)=') or ''
  local known, at = string.match(seen, '^(%S*)@(%d+)$')
  local age = clock - (tonumber(at) or 0)
  if known ~= newest or age < 0 or age > KNOWLEDGE_MS then return { 'changed', string.format('%s@%.0f', newest, clock) } end
  return nil, changes
end

local function remember_change(name, operation, answer, changes)
  local kept = { operation .. '=' .. answer }
  for change in string.gmatch(changes, '%S+') do
    if #kept < PAST_CHANGES then kept[#kept + 1] = change end
  end
  redis.call('SET', pauses_key(name), table.concat(kept, ' '), 'PX', REMOVED_MS)
end
