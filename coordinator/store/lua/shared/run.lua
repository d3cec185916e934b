-- Reading a run: its spec, its token, and whether a call comes from its owner.

-- Return the fields and values that store a spec. A short spec is stored in pieces: the server stores a hash compactly while no
-- value is longer than 64 bytes, so a waiting run with 100 bytes of input takes 400 bytes instead of 630. A long spec is stored
-- whole, because pieces would save no memory.
local function split_spec(spec)
  local n = #spec
  if n <= SPEC_PIECE or n > SPEC_IN_PIECES then return 'spec', spec end
  if n <= 2 * SPEC_PIECE then return 'spec', string.sub(spec, 1, SPEC_PIECE), 'spec1', string.sub(spec, SPEC_PIECE + 1) end
  local pieces = { 'spec', string.sub(spec, 1, SPEC_PIECE) }
  for i = 1, math.ceil(n / SPEC_PIECE) - 1 do
    pieces[2 * i + 1], pieces[2 * i + 2] = 'spec' .. i, string.sub(spec, SPEC_PIECE * i + 1, SPEC_PIECE * i + SPEC_PIECE)
  end
  return unpack(pieces)
end

-- Return the whole spec. The caller passes the first pieces, which it has read with other fields; most specs have no more.
local function join_spec(id, first, second, ...)
  if #first ~= SPEC_PIECE or not second then return first end
  if #second ~= SPEC_PIECE then return first .. second end
  local pieces, known = {}, { first, second, ... }
  for i = 1, SPEC_PIECES do
    if i > 1 and #pieces[i - 1] ~= SPEC_PIECE then break end
    if i > #known then known = redis.call('HMGET', run_key(id), SPEC_FIELDS) end
    if not known[i] then break end
    pieces[i] = known[i]
  end
  return table.concat(pieces)
end

local function netstring(text) return #text .. ':' .. text end

-- Return the worker in a token. A token is "<epoch>-<number of the claim>-<worker>". Runs that were claimed together mostly have the
-- same token, so the worker of the last token is kept.
local last_token, last_worker
local function worker_of(token)
  if token ~= last_token then last_token, last_worker = token, string.match(token, '^%d+%-%d+%-(.+)$') end
  return last_worker
end

-- Return how a call that ends an attempt relates to the run: 'owner' if the caller owns the run; 'repeated' and the first answer
-- if the same call was carried out before; 'fenced' otherwise.
local function check_caller(token, run, call)
  if run.token and run.token == token then return 'owner' end
  local before = token .. ' ' .. call .. ' '
  if run.last and string.sub(run.last, 1, #before) == before then return 'repeated', string.sub(run.last, #before + 1) end
  return 'fenced'
end

-- Store the owner's call with its answer, so that a repetition gets the same answer.
local function remember_call(id, token, call, answer)
  redis.call('HSET', run_key(id), 'last', token .. ' ' .. call .. ' ' .. answer)
end

-- Return the first answer to a repeated call. The stored value is written again, so that a WAIT for replicas covers it.
local function repeat_answer(id, run, answer)
  redis.call('HSET', run_key(id), 'last', run.last)
  return { answer }
end
