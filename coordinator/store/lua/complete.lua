-- complete: ends runs whose handlers returned.
-- Protects: only the owner ends a run, once; the same call again gets the same answer.
-- ARGV: now
-- EACH: id, token, result
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> completed
-- Answers: ok, fenced
local clock = server_ms(now)
local answers = {}
write_later()
for i = 1, items do
  local id, token, result = item(i)
  -- what `read_run` reads, without what no completion needs
  local v = fields(run_key(id), 'status', 'token', 'last', 'route', 'retention', 'once', 'cancel', 'waited')
  local run = v and v[1] and v[4] and (v[2] or v[1] ~= 'running') and {
    token = v[2], last = v[3], route = v[4], retention = v[5], once = v[6], cancel = v[7], waited = v[8],
  }
  local call = run and standing(token, run, 'complete') or 'fenced'
  if call == 'now' then
    let_go(id, run)
    local last = token .. ' complete ok'
    if result == '' then
      finish(id, run, 'completed', clock, 'last', last)
    else
      finish(id, run, 'completed', clock, 'last', last, 'result', result)
    end
  elseif call == 'again' then
    repeated(id, run, 'ok')
  end
  answers[i] = call == 'fenced' and 'fenced' or 'ok'
end
return write_together() or answers
