-- note: store the notes of handlers about their progress, for runs that seldom save.
-- Protects: only a note of the run's owner is stored.
-- Role: worker
-- Keys: run
-- EACH: id, token, note
--   id: id of the run
--   token: the token of the run's owner
--   note: the text to show, encoded
-- Unconfirmed: a note is for people, and the next one replaces it
-- Answers: ok, fenced
local answers = {}
for i = 1, items do
  local id, token, note = item(i)
  local owner_token = read_fields(run_key(id), 'token')
  local owner = owner_token == token
  if owner then redis.call('HSET', run_key(id), 'note', note) end
  answers[i] = owner and 'ok' or 'fenced'
end
return answers
