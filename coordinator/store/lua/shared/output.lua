-- The output of a run: a stream with the events that its handler emitted. An entry has one field, whose name is a letter and the
-- base of the attempt that wrote it: e<base> or n<base> for an event, s<base> for a settled position, r<base> for a rewind,
-- x<base> for the end.
-- The base is the number of the last event that the attempt's checkpoint covers. The id of an entry is
-- <epoch>-<PLACES * number of the last event + place>: the place of an event is 0, the other entries follow it.
-- So each entry says at which number its attempt began, and which number the stream has reached. If an attempt begins at a
-- lower number than the stream has reached, readers drop the events after its base: see model/output.py.

-- Add an entry. Return false if its id is not above the last id of the stream, or if the key has another type.
local function add_output(id, epoch, position, place, field, value)
  local entry = int(epoch) .. '-' .. int(position * OUTPUT_PLACES + place)
  return type(redis.pcall('XADD', output_key(id), entry, field, value)) == 'string'
end

-- Remove rewinds whose events are removed. A rewind is not needed if a later one goes back at least as far. If too many are left, the
-- first stays, which goes back farthest, and the newest ones. A reader that may need one of the others drops all its events: see
-- model/output.py.
local function trim_rewinds(key, rewinds)
  local kept, lowest = {}, math.huge
  for i = #rewinds, 1, -1 do
    if rewinds[i].base < lowest then
      kept[#kept + 1], lowest = rewinds[i].entry, rewinds[i].base
    else
      redis.call('XDEL', key, rewinds[i].entry)
    end
  end
  for i = OUTPUT_REWINDS, #kept - 1 do redis.call('XDEL', key, kept[i]) end
end

-- Remove the oldest entries if there are too many, or if they are too large. Remove an eighth more than necessary, so that few
-- calls have to remove entries. Readers find from the numbers of the events that some are missing. The newest rewinds stay: a reader
-- that comes back with events of a lost attempt needs them, even if the events of the attempt after it are removed. The newest
-- settled position stays: a reader of settled events learns from it that such events are missing.
local function trim_output(id, output)
  local key = output_key(id)
  local count = redis.pcall('XLEN', key)
  if type(count) ~= 'number' or (count <= OUTPUT_EVENTS and output.bytes <= OUTPUT_BYTES) then return end
  local from, rewinds, settled = '-', {}, nil
  local function is_small() return count <= OUTPUT_EVENTS * 7 / 8 and output.bytes <= OUTPUT_BYTES * 7 / 8 end
  while not is_small() do
    local entries, old = redis.call('XRANGE', key, from, '+', 'COUNT', 32), {}
    if #entries == 0 then
      output.bytes = 0
      break
    end
    for i = 1, #entries do
      local entry, name, value = entries[i][1], entries[i][2][1], entries[i][2][2]
      if is_small() then break end
      from = '(' .. entry
      local letter = string.sub(name, 1, 1)
      if letter == 'r' then
        rewinds[#rewinds + 1] = { entry = entry, base = tonumber(string.sub(name, 2)) or 0 }
      elseif letter == 's' then
        if settled then
          old[#old + 1] = settled
          count = count - 1
        end
        settled = entry
      else
        old[#old + 1] = entry
        count, output.bytes = count - 1, math.max(0, output.bytes - #value)
      end
    end
    if #old > 0 then redis.call('XDEL', key, unpack(old)) end
  end
  trim_rewinds(key, rewinds)
end

-- Continue the numbers of an output with the numbers of another attempt. If this attempt begins before the number that the stream
-- has reached, the events after its base are void, and a rewind tells readers to drop them.
local function begin_output(id, output, epoch, base)
  local is_void = output.position > base
  output.epoch, output.base, output.position, output.marks = epoch, base, base, 0
  output.settled = math.min(output.settled, base)
  if is_void then
    output.marks = 1
    add_output(id, epoch, base, 1, 'r' .. int(base), '')
  end
end

-- Write the events that an owner sends, and the position that its checkpoint covers. Events that are stored already are skipped,
-- so the same events may be sent again, and with a later save. The text is netstrings: "<number of the first event> <base>
-- <settled position>", and for each event a letter and its payload. The caller has compared the token. Return false if the text
-- can't be read.
local function write_output(id, token, text, now)
  local parts = netstrings(text)
  local first, base, settled = string.match(parts and parts[1] or '', '^(%d+) (%d+) (%d+)$')
  if not first or #first > 12 or #base > 12 or #settled > 12 then return false end
  first, base, settled = tonumber(first), tonumber(base), tonumber(settled)
  local stored, beside = read_fields(run_key(id), 'output', 'beside')
  local output, epoch, stamp = read_output(stored), tonumber(string.match(token, '^%d+')), int(now) .. ' '
  if output.epoch ~= epoch then begin_output(id, output, epoch, base) end
  for i = 2, #parts do
    local number, letter = first + i - 2, string.sub(parts[i], 1, 1)
    if number > output.position then
      local value = stamp .. string.sub(parts[i], 2)
      if not add_output(id, epoch, number, 0, letter .. int(base), value) then break end
      output.position, output.marks, output.bytes = number, 0, output.bytes + #value
    end
  end
  if settled > output.settled and output.marks < OUTPUT_PLACES - 2 then
    output.position = math.max(output.position, settled)
    output.marks, output.settled = output.marks + 1, settled
    add_output(id, epoch, output.position, output.marks, 's' .. int(base), int(settled))
  end
  trim_output(id, output)
  redis.call('HSET', run_key(id), 'output', write_output_numbers(output))
  if not string.find(beside or '', 'o', 1, true) then redis.call('HSET', run_key(id), 'beside', (beside or '') .. 'o') end
  return true
end

-- Return the number of the last event that the checkpoint of a run covers.
local function read_emitted(id)
  local more = redis.pcall('HGET', ckpt_key(id), 'more')
  local parts = netstrings(type(more) == 'string' and more or '') or {}
  for i = 1, #parts - 1, 2 do
    if parts[i] == 'emitted' then return tonumber(parts[i + 1]) or 0 end
  end
  return 0
end

-- Note that an attempt is over. If it has written nothing, the events after its checkpoint are from an earlier attempt, and are
-- void. The caller has applied the last changes to the checkpoint.
local function leave_output(id, run)
  if not string.find(run.beside or '', 'o', 1, true) then return end
  local output, epoch = read_output((read_fields(run_key(id), 'output'))), tonumber(string.match(run.token or '', '^%d+'))
  local base = read_emitted(id)
  if not epoch or epoch <= output.epoch or output.position <= base then return end
  begin_output(id, output, epoch, base)
  redis.call('HSET', run_key(id), 'output', write_output_numbers(output))
end

-- Write the end of a run's output. If the attempt that ends has written nothing, the events after its checkpoint are void.
-- Otherwise all events stay.
local function end_output(id, run, status)
  leave_output(id, run)
  local stored, counters = read_fields(run_key(id), 'output', 'counters')
  local output = read_output(stored)
  -- The checkpoint covers more events than the stream has, if its saves could not carry them: a process of an older version was alive.
  -- The number of the end then tells readers that events are missing.
  local position = math.max(output.position, read_emitted(id))
  if add_output(id, output.epoch, position, OUTPUT_PLACES - 1, 'x' .. int(output.base), status) then return end
  -- The output was ended before, and the run was revived since, which gave it a higher epoch.
  local _, _, latest = string.match(counters or '', COUNTERS_TO_EPOCH)
  if latest then add_output(id, tonumber(latest), position, OUTPUT_PLACES - 1, 'x' .. int(position), status) end
end

-- Remove the end from the output of a run that is revived.
local function reopen_output(id)
  local last = redis.pcall('XREVRANGE', output_key(id), '+', '-', 'COUNT', 1)
  if last[1] and string.sub(last[1][2][1], 1, 1) == 'x' then redis.call('XDEL', output_key(id), last[1][1]) end
end
