-- Time, and numbers as text.

-- Return the server's time in ms. The caller's time counts only in a namespace with the test clock.
local function server_ms(given)
  if given ~= '' and redis.call('HGET', namespace_key(), 'clock') == 'test' then return tonumber(given) end
  local seconds, microseconds = unpack(redis.call('TIME'))
  return seconds * 1000 + math.floor(microseconds / 1000)
end

-- Return a whole number as text. Lua's tostring keeps only 14 digits. One call often writes the same few times for many runs, so
-- each number is formatted once.
local INTS = {}
local function int(n)
  local text = INTS[n]
  if not text then
    text = string.format('%.0f', n)
    INTS[n] = text
  end
  return text
end
