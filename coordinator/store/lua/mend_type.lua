-- mend_type: moves what is in the place of a key, and of another type, aside for a week.
-- Protects: nothing is deleted, and nothing that has the right type by now is moved.
-- ARGV: key, name, expected
-- Flags: allow-oom
-- Answers: kept, changed
local is = redis.call('TYPE', key)
is = type(is) == 'table' and is.ok or is
if is == 'none' or is == expected then return { 'changed' } end

redis.call('UNLINK', set_aside_key(name)) -- else RENAME would free it here and now, however large it is
redis.call('RENAME', key, set_aside_key(name))
redis.call('PEXPIRE', set_aside_key(name), 604800000)
return { 'kept' }
