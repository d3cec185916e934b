-- record_list: answer which of the given runs no other process executes now, each with the last owner in its record.
-- Protects: a run that another live process executes is not mistaken for interrupted.
-- Role: worker
-- Keys: namespace, record, record_owners, records
-- ARGV: now, owner
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   owner: the process that executes the run, as "<nonce>-<lease in ms>"
-- ITEM: id
--   id: id of the run
-- Flags: allow-oom
-- Uses: time, owner
-- Unconfirmed: the script only reads
-- Answers: ok
--   ok: with ids and owners
local clock = server_ms(now)
local found = {}
for i = 1, items do
  local id = item(i)
  local before = read_fields(record_key(id), 'owner')
  if redis.call('EXISTS', record_key(id)) == 0 then
    redis.call('ZREM', records_key(), id)
  elseif not before then
    found[#found + 1] = id
    found[#found + 1] = ''
  elseif before == owner or not check_lease(before, clock) then
    found[#found + 1] = id
    found[#found + 1] = before
  end
end
return { 'ok', found }
