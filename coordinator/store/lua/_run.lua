-- Reading a run: its fields, its counters, its token.
local COUNTERS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (-?%d+) (%d+)$'

-- Fields of a hash; nil where the key is not a hash, so that a wrong type never ends a script in the middle.
local function fields(key, ...)
  local values = redis.pcall('HMGET', key, ...)
  if values.err then return nil end
  return values
end

-- The spec lies in pieces. A server keeps a hash in one small piece of memory while none of its values is longer than 64 bytes: a
-- waiting run with 100 bytes of input then takes 400 bytes and not 630. Beside a long spec that does not matter: it lies whole.
local SPEC = { 'spec', 'spec1', 'spec2', 'spec3', 'spec4', 'spec5', 'spec6', 'spec7' }

local function in_pieces(spec)
  local n = #spec
  if n <= 64 or n > 512 then return 'spec', spec end
  if n <= 128 then return 'spec', string.sub(spec, 1, 64), 'spec1', string.sub(spec, 65) end
  local pieces = { 'spec', string.sub(spec, 1, 64) }
  for i = 1, math.ceil(n / 64) - 1 do
    pieces[2 * i + 1], pieces[2 * i + 2] = 'spec' .. i, string.sub(spec, 64 * i + 1, 64 * i + 64)
  end
  return unpack(pieces)
end

-- The spec from its first pieces, which most have no more of.
local function whole_spec(id, ...)
  local pieces, asked = {}, { ... }
  for i = 1, #SPEC do
    if i > 1 and #pieces[i - 1] ~= 64 then break end
    if i > #asked then asked = redis.call('HMGET', run_key(id), unpack(SPEC)) end
    if not asked[i] then break end
    pieces[i] = asked[i]
  end
  return table.concat(pieces)
end

local function read_counters(text)
  if not text then return nil end
  local life, attempt, epoch, releases, recoveries, strikes, failures, backoffs, struck, failed, score, created =
    string.match(text, COUNTERS)
  if not life then return nil end
  return {
    life = tonumber(life), attempt = tonumber(attempt), epoch = tonumber(epoch), releases = tonumber(releases),
    recoveries = tonumber(recoveries), strikes = tonumber(strikes), failures = tonumber(failures),
    backoffs = tonumber(backoffs), struck = tonumber(struck), failed = tonumber(failed), score = tonumber(score),
    created = tonumber(created),
  }
end

local function write_counters(c)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', c.life, c.attempt, c.epoch, c.releases,
    c.recoveries, c.strikes, c.failures, c.backoffs, c.struck, c.failed, c.score, c.created)
end

-- What a run has used up of its deadlines: the ms of its attempts that are over, those of them since the last progress, how far that
-- was, how often it was given more time and how many ms. Nothing yet where nothing can be read: no run fails because of this field.
local function read_spent(text)
  local used, idle, progress, extensions, extended = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    used = tonumber(used) or 0, idle = tonumber(idle) or 0, progress = tonumber(progress) or 0,
    extensions = tonumber(extensions) or 0, extended = tonumber(extended) or 0,
  }
end

local function write_spent(s)
  return string.format('%.0f %.0f %.0f %.0f %.0f', s.used, s.idle, s.progress, s.extensions, s.extended)
end

-- A token is epoch-number-worker: number and worker are the claimer's nonce.
local function worker_of(token) return string.match(token, '^%d+%-%d+%-(.+)$') end

-- Whose call this is: 'now' (the owner's), 'again' with the answer that it got (it was carried out before), or 'fenced'.
local function standing(token, run, call)
  if run.token and run.token == token then return 'now' end
  local before = token .. ' ' .. call .. ' '
  if run.last and string.sub(run.last, 1, #before) == before then return 'again', string.sub(run.last, #before + 1) end
  return 'fenced'
end

-- The owner's call is remembered with its answer, and a repetition writes too: a WAIT after it means something.
local function remember_call(id, token, call, answer) redis.call('HSET', run_key(id), 'last', token .. ' ' .. call .. ' ' .. answer) end
local function repeated(id, run, answer)
  redis.call('HSET', run_key(id), 'last', run.last)
  return { answer }
end
