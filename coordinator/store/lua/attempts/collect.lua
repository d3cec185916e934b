-- collect: answer a page of the endings of a step's children.
-- Protects: only the owner collects.
-- Role: worker
-- Keys: joins, results, run
-- ARGV: id, token, base, by, start, room
--   id: id of the parent
--   token: the token of the run's owner
--   base: id of the first child of the step
--   by: index (of the child in the step) or order (in which the children ended, from 1)
--   start: the first index or order of the page
--   room: limit of the bytes of endings in one page; a page has at least one ending, if there is one
-- Flags: allow-oom
-- Uses: time, spend, children
-- Unconfirmed: the script only reads
-- Answers: ok, fenced, missing, bad
--   ok: with the number of children, the number of endings, and for each ending in the page: index, status, payload. The payload of
--     a completed child is its result; the payload of any other child is two netstrings: error, reason
--   missing: the parent does not know the step
local MOST_ENDINGS = 500
local owner_token = read_fields(run_key(id), 'token')
if owner_token ~= token then return { 'fenced' } end
if not string.find(start, '^%d+$') then return { 'bad' } end
local spawned, ended = read_join(id, base)
if not spawned then return { 'missing' } end

local rows, size, place = {}, 0, tonumber(start)
while #rows < 3 * MOST_ENDINGS do
  local index = int(place)
  if by == 'order' then index = redis.call('HGET', results_key(id), base .. '#' .. index) end
  local row = index and redis.call('HGET', results_key(id), base .. ':' .. index)
  local status, payload = string.match(row or '', '^%d+ (%a+) (.*)$')
  size = size + #(payload or '')
  if not status or (#rows > 0 and size > tonumber(room)) then break end
  rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = index, status, payload
  place = place + 1
end
return { 'ok', int(spawned), int(ended), rows }
