-- List a kind among the limited kinds if it has a limit, so that enqueue.lua refuses runs of the kind without a group.
local function mark_limited(kind)
  local set, published = unpack(redis.call('HMGET', limits_key(), 'kind:' .. kind, 'handler:' .. kind))
  local names, kept, is_limited = redis.call('HGET', namespace_key(), 'limited') or '', {}, tonumber(set or published)
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
