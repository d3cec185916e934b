-- Deciding whether a pause or unpause is still valid. Each change has its own operation id, and names the previous change that its
-- caller knows. The last changes are stored, newest first, as "<operation>=<answer>".
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
  local newest = string.match(changes, '^(%S+)=') or ''
  if newest ~= seen then return { 'changed', newest } end
  return nil, changes
end

local function remember_change(name, operation, answer, changes)
  local kept = { operation .. '=' .. answer }
  for change in string.gmatch(changes, '%S+') do
    if #kept < PAST_CHANGES then kept[#kept + 1] = change end
  end
  redis.call('SET', pauses_key(name), table.concat(kept, ' '), 'PX', REMOVED_MS)
end
