-- record_list: of some runs those that nobody else executes now, each with the owner that it had.
-- Protects: what another live process executes is not taken for interrupted.
-- ARGV: now, owner
-- ITEM: id
-- Flags: allow-oom
-- Uses: time, run, owner
-- Unconfirmed: it only looks
-- Answers: ok
local clock = server_ms(now)
local found = {}
for i = 1, items do
  local id = item(i)
  local record = fields(record_key(id), 'owner', 'head', 'gone')
  if redis.call('EXISTS', record_key(id)) == 0 then
    redis.call('ZREM', records_key(), id)
  elseif not record or not record[1] then
    found[#found + 1] = id
    found[#found + 1] = ''
  elseif record[1] == owner or not lives(record[1], clock) then
    found[#found + 1] = id
    found[#found + 1] = record[1]
  end
end
return { 'ok', found }
