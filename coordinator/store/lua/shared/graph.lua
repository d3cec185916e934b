-- The stored form of a graph's thread. A hash has all content, and a sorted set has the names of its checkpoints and writes in
-- lexicographic order, all with the score 0. NUL separates the parts of a name. The first letter says what a field of the hash is:
--   c<namespace> <checkpoint>                  a checkpoint: netstring of its parent's id, then its body. Also in the sorted set.
--   r<namespace> <checkpoint>                  its references: a netstring "<channel> <version>" for each channel
--   b<namespace> <channel> <version>           the value of a channel at a version
--   w<namespace> <checkpoint> <task> <index>   a write of a task. Also in the sorted set.
--   l<log><number>                             a chunk of a list: a row of entries. Empty: it was deleted, and the chunk before it
--                                              is still used. A list with this chunk must not be continued.
--   i<digest>                                  an item: a value that occurs in lists, channels or writes, stored once. It starts
--                                              with '0' (plain), '1' (compressed), or '2' and the digest of another item,
--                                              against which it is compressed
--   k<dictionary>                              the text against which bodies of checkpoints are compressed
--   x<copy>                                    a copy into this thread is under way, and nothing was deleted since it began
-- The sorted set also has u<run> <namespace> <checkpoint> for a checkpoint that a run of LangGraph made.
-- An entry is 'r' and the digest of an item (12 bytes), or 's', the length (2 bytes) and a short value itself.

-- Add the digests of the items in a row of entries to `digests`.
local function add_digests(text, from, digests)
  local size = #text
  while from <= size do
    local tag, high, low = string.byte(text, from, from + 2)
    if tag == 114 then
      digests[#digests + 1] = string.sub(text, from + 1, from + 12)
      from = from + 13
    else
      from = from + 3 + high * 256 + low
    end
  end
end

-- Add the digests of the items in a value to `digests`. A list has no digests of its own: return the field of its last chunk.
local function add_references(value, digests)
  local tag = string.sub(value, 1, 1)
  if tag == 'e' or tag == 'c' then return add_digests(value, 2, digests) end
  return 'l' .. string.sub(value, 2, 9) .. int(tonumber(string.sub(value, 10)) - 1)
end

-- Visit the value of a channel or of a write: add the digests of its items to `digests`, and the fields and contents of its chunks
-- to `chunks`.
local function visit_value(key, value, digests, chunks)
  local tag = string.sub(value, 1, 1)
  if tag == 'e' or tag == 'c' then return add_digests(value, 2, digests) end
  local log, count = string.sub(value, 2, 9), tonumber(string.match(value, '^%d+', 10))
  for number = 0, count - 1 do
    local field = 'l' .. log .. number
    local chunk = redis.call('HGET', key, field)
    if chunk then
      chunks[#chunks + 1] = field
      chunks[#chunks + 1] = chunk
      add_digests(chunk, 1, digests)
    end
  end
end

-- Return the value in a stored write, which follows its channel and the path of its task, and its channel.
local function value_of_write(text)
  local size = string.match(text, '^%d+')
  local channel = string.sub(text, #size + 2, #size + 1 + tonumber(size))
  local from = #size + 2 + tonumber(size)
  size = string.match(text, '^%d+', from)
  return string.sub(text, from + #size + 1 + tonumber(size)), channel
end

-- Return the names in the sorted set that start with `start`, in order.
local function names_from(index, start) return redis.call('ZRANGEBYLEX', index, '[' .. start, '(' .. start .. '\255') end

-- Return references as a list. A reference without a version has the version of the one before.
local function expand_refs(text)
  local refs, version = netstrings(text), nil
  for place, ref in ipairs(refs) do
    local own = string.match(ref, '%z.*$')
    version = own or version
    if not own then refs[place] = ref .. version end
  end
  return refs
end

-- Return a write with the path of its task after its channel.
local function insert_path(write, path)
  local size = string.match(write, '^%d+')
  local last = #size + 1 + tonumber(size)
  return string.sub(write, 1, last) .. netstring(path) .. string.sub(write, last + 1)
end

-- Return the references of a checkpoint: those of its parent, with the changes.
local function merge_refs(before, changes)
  local places, merged = {}, netstrings(before)
  for place, ref in ipairs(merged) do places[string.match(ref, '^[^%z]*')] = place end
  for _, ref in ipairs(changes) do merged[places[string.match(ref, '^[^%z]*')] or #merged + 1] = ref end
  for place, ref in ipairs(merged) do merged[place] = netstring(ref) end
  return table.concat(merged)
end

-- Return the content of a checkpoint's body: the id of its parent, and the field of the dictionary that the body needs, if any.
local function parse_body(text)
  local size = string.match(text, '^%d+')
  local from = #size + 2 + tonumber(size)
  local dictionary = string.sub(text, from, from) == 'z' and 'k' .. string.sub(text, from + 1, from + 8) or nil
  return string.sub(text, #size + 2, from - 1), dictionary
end

-- Return the field of the item against which an item is compressed; nil if there is none.
local function base_of(value) return string.sub(value, 1, 1) == '2' and 'i' .. string.sub(value, 2, 13) or nil end

-- Add fields and values of items to `parts`, until `room` bytes are used, and return the parts.
local function add_items(key, digests, parts, room)
  local seen = {}
  local place = 1
  while digests[place] do
    local field = 'i' .. digests[place]
    place = place + 1
    if not seen[field] and room > 0 then
      seen[field] = true
      local value = redis.call('HGET', key, field)
      if value then
        parts[#parts + 1] = field
        parts[#parts + 1] = value
        room = room - #value
        local base = base_of(value)
        if base then digests[#digests + 1] = string.sub(base, 2) end
      end
    end
  end
  return parts
end

-- Return an id as text. NUL and 16 bytes are a UUID. No other id contains NUL.
local function unpack_id(id)
  if #id ~= 17 or string.byte(id) ~= 0 then return id end
  local bytes = { string.byte(id, 2, 17) }
  return string.format('%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x', unpack(bytes))
end

-- Return the id of the newest checkpoint of a namespace; nil if there is none.
local function newest_id(index, ns)
  local start = 'c' .. ns .. '\0'
  local newest = redis.call('ZREVRANGEBYLEX', index, '(' .. start .. '\255', '[' .. start, 'LIMIT', 0, 1)[1]
  return newest and string.sub(newest, #start + 1)
end

-- Let a key of a thread that belongs to no run expire after `ttl` ms, or not at all if this is 0. An earlier process may have set
-- another time.
local function expire(key, ttl)
  if ttl == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ttl) end
end

-- Store a field of a thread. The first regular write of a task stays. A special write, which has a negative index, replaces the one
-- before. An item that is stored stays as it is: another process may have stored the same content, compressed against another item.
local function store_field(key, field, value)
  local letter = string.sub(field, 1, 1)
  local stays = letter == 'i' or letter == 'w' and not string.find(field, '%z%-%d+$')
  redis.call(stays and 'HSETNX' or 'HSET', key, field, value)
end
