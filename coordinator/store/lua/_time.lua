-- Time is the server's. A given one counts only where the namespace has the test clock.
local function server_ms(given)
  if given ~= '' and redis.call('HGET', namespace_key(), 'clock') == 'test' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- tostring keeps 14 digits only. The same few times are written for every run of a call: each is formatted once.
local INTS = {}
local function int(n)
  local text = INTS[n]
  if not text then
    text = string.format('%.0f', n)
    INTS[n] = text
  end
  return text
end
