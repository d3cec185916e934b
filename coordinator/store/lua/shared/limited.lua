-- List a kind among the limited kinds if it has a limit or a rate of starts, so that enqueue.lua refuses runs of the kind without a group.
local function mark_limited(kind)
  local set, published, rate, published_rate = unpack(redis.call('HMGET', limits_key(), 'kind:' .. kind, 'handler:' .. kind,
    'rate:kind:' .. kind, 'rate:handler:' .. kind))
  local is_limited = tonumber(set or published) or (rate or published_rate or '-') ~= '-'
  local names, kept = redis.call('HGET', namespace_key(), 'limited') or '', {}
  for name in string.gmatch(names, '%S+') do
    if name ~= kind then kept[#kept + 1] = name end
  end
  if is_limited then kept[#kept + 1] = kind end
  if #kept > 0 then
    redis.call('HSET', namespace_key(), 'limited', ' ' .. table.concat(kept, ' ') .. ' ')
  else
    redis.call('HDEL', namespace_key(), 'limited')
  end
end
