-- spend: store the total that an attempt has spent, and answer the amounts that the run has spent before and beside this attempt.
-- Protects: only the owner's total counts; a repeated or late call does not count an amount twice.
-- Role: worker
-- Keys: run
-- ARGV: id, token, usd, tokens, requests
--   id: id of the run
--   token: the token of the run's owner
--   usd: micro-dollars that this attempt has spent, in total
--   tokens: tokens that this attempt has spent, in total
--   requests: requests that this attempt has made, in total
-- Flags: allow-oom
-- Uses: time, spend
-- Answers: ok, fenced, bad
--   ok: with the amounts that earlier attempts of the run and its children have spent: micro-dollars, tokens, requests
local owner_token, text, beside = read_fields(run_key(id), 'token', 'spend', 'beside')
if owner_token ~= token then return { 'fenced' } end
usd, tokens, requests = tonumber(usd), tonumber(tokens), tonumber(requests)
if not (usd and tokens and requests) then return { 'bad' } end
local spend = read_spend(text)
fold_spend(spend, tonumber(string.match(token, '^%d+')), usd, tokens, requests)
store_spend(id, spend, beside)
return { 'ok', int(spend.settled_usd), int(spend.settled_tokens), int(spend.settled_requests) }
