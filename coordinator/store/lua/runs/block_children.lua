-- block_children: refuse new children of a run in this partition, because its tree is being cancelled; or allow them again,
-- because the run is about to be revived.
-- Protects: a child that is enqueued while a tree is being cancelled is either among the children that are listed after this
-- call, or it is refused; a mark that arrives late does not count for the next life of the run.
-- Role: producer
-- Keys: felled
-- ARGV: id, life, again, ttl
--   id: id of the run
--   life: the life that is cancelled, or from which the run is revived
--   again: 1 to allow children again
--   ttl: ms that the mark is kept
-- Flags: allow-oom
-- Answers: ok
-- The key stores the life, with a '-' in front if the run was revived from it.
local mark = redis.pcall('GET', felled_key(id))
local revived, marked_life = string.match(type(mark) == 'string' and mark or '', '^(%-?)(%d+)$')
marked_life = tonumber(marked_life)
local late = marked_life
  and (marked_life > tonumber(life) or (marked_life == tonumber(life) and revived == '-' and again ~= '1'))
if not late then redis.call('SET', felled_key(id), (again == '1' and '-' or '') .. life, 'PX', ttl) end
return { 'ok' }
