-- The spending of runs. The field `spend` of a run has the settled total (of earlier attempts and of joined children), the total of
-- the last attempt that spent something, and the part of the sum that was added to the run's parent: see SPEND in store/formats.py.

-- Return the total that a run has spent: micro-dollars, tokens and requests.
local function sum_spend(spend)
  return spend.settled_usd + spend.usd, spend.settled_tokens + spend.tokens, spend.settled_requests + spend.requests
end

local function store_spend(id, spend, beside)
  redis.call('HSET', run_key(id), 'spend', write_spend(spend))
  if not string.find(beside or '', 'b', 1, true) then redis.call('HSET', run_key(id), 'beside', (beside or '') .. 'b') end
end

-- Put the total of an attempt into `spend`. If the total is of another epoch, the total of the attempt before is added to the settled
-- total. A late total of the same attempt is smaller, and changes nothing.
local function fold_spend(spend, epoch, usd, tokens, requests)
  if spend.epoch ~= epoch then
    spend.settled_usd, spend.settled_tokens, spend.settled_requests = sum_spend(spend)
    spend.epoch, spend.usd, spend.tokens, spend.requests = epoch, 0, 0, 0
  end
  spend.usd = math.max(spend.usd, usd)
  spend.tokens, spend.requests = math.max(spend.tokens, tokens), math.max(spend.requests, requests)
end

-- Add the spending of a child to its parent: only the amount since the last addition, so that nothing counts twice. A parent that has
-- ended gets the amount too, because it may be revived. The total of an ended parent was added to its own parent before, so the amount
-- is added there as well, and so on.
local MOST_LEVELS = 100
local function roll_up_spend(id, parent)
  for _ = 1, MOST_LEVELS do
    local status, above_text, beside, joined = read_fields(run_key(parent), 'status', 'spend', 'beside', 'joined')
    if not is_open(status) and not is_ended(status) then return end
    local spend, above = read_spend(read_fields(run_key(id), 'spend')), read_spend(above_text)
    local usd, tokens, requests = sum_spend(spend)
    above.settled_usd = above.settled_usd + math.max(0, usd - spend.rolled_usd)
    above.settled_tokens = above.settled_tokens + math.max(0, tokens - spend.rolled_tokens)
    above.settled_requests = above.settled_requests + math.max(0, requests - spend.rolled_requests)
    spend.rolled_usd, spend.rolled_tokens, spend.rolled_requests = usd, tokens, requests
    redis.call('HSET', run_key(id), 'spend', write_spend(spend))
    store_spend(parent, above, beside)
    id, parent = parent, string.match(joined or '', JOINED_PATTERN)
    if is_open(status) or not parent then return end
  end
end
