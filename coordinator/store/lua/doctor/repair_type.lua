-- repair_type: rename a key that has the wrong type, and keep it aside for a week.
-- Protects: nothing is deleted, and a key that has the right type by now is not moved.
-- Role: coordinator
-- Keys: set_aside
-- ARGV: key, name, expected
--   key: the whole key
--   name: the key without the hash tag
--   expected: the type that the key should have
-- Flags: allow-oom
-- Answers: kept, changed
--   kept: the key was moved aside
--   changed: the fault does not exist any more
local is = redis.call('TYPE', key)
is = type(is) == 'table' and is.ok or is
if is == 'none' or is == expected then return { 'changed' } end

-- RENAME would free an overwritten key before it returns, however large the key is. UNLINK frees the key in the background.
redis.call('UNLINK', set_aside_key(name))
redis.call('RENAME', key, set_aside_key(name))
redis.call('PEXPIRE', set_aside_key(name), WEEK_MS)
return { 'kept' }
