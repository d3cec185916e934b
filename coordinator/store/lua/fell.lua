-- fell: from now on no run is taken over in this partition whose parent is this run; or again, where it is to be revived.
-- Protects: a child that is enqueued while a tree is being cancelled is either among the children that are listed after this call,
-- or refused; a mark that comes late does not count for the next life of the run.
-- ARGV: id, life, again, ttl
-- Flags: allow-oom
-- Answers: ok
-- life is the one that is cancelled, or that was. The key says it, with a '-' where the run was revived from it.
local known = redis.pcall('GET', felled_key(id))
local revived, of = string.match(type(known) == 'string' and known or '', '^(%-?)(%d+)$')
local late = of and (tonumber(of) > tonumber(life) or (tonumber(of) == tonumber(life) and revived == '-' and again ~= '1'))
if not late then redis.call('SET', felled_key(id), (again == '1' and '-' or '') .. life, 'PX', ttl) end
return { 'ok' }
