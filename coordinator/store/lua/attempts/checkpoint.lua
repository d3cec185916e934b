-- checkpoint: save the changes to the checkpoints of runs.
-- Protects: only the owner saves; a lost reply neither doubles nor loses a message; a late save changes nothing.
-- Role: worker
-- Keys: ckpt, effects, messages, namespace, output, run
-- ARGV: now
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
-- EACH: id, token, delta
--   id: id of the run
--   token: the token of the run's owner
--   delta: the changes to the checkpoint; empty: no changes (see shared/checkpoint.lua)
-- Uses: time, checkpoint, output
-- Answers: ok, gap, old, fenced, bad, unreadable
--   ok: with the progress counter
--   gap: the delta does not fit the stored checkpoint; the worker then saves its whole checkpoint
--   old: a later save is stored
--   bad: the delta can't be read
--   unreadable: the stored checkpoint can't be read
local clock = server_ms(now)
local answers = {}
for i = 1, items do
  local id, token, delta = item(i)
  local owner_token = read_fields(run_key(id), 'token')
  if owner_token ~= token then
    answers[i] = { 'fenced' }
  else
    local plan, word = plan_delta(id, delta)
    answers[i] = plan and { 'ok', apply_delta(plan, clock) } or { word }
    if plan and plan.output then write_output(id, token, plan.output, clock) end
  end
end
return answers
