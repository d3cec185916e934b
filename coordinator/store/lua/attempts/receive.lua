-- receive: answer the signal that a run receives next, from the topics that its handler names.
-- Protects: the signals of a topic are received in their order, and the signals of several topics in the order in which they were
-- sent; a signal that was not stored before the deadline is left for the next receive; only the server's clock decides which
-- of signal and deadline was first. A wait that has timed out times out again, even if a signal is stored in the same millisecond.
-- Role: worker
-- Keys: namespace, run, signals
-- ARGV: now, id, token, deadline, timeout
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   token: the token of the run's owner
--   deadline: server time in ms at which the wait ends; empty: the deadline is not known yet, or there is none
--   timeout: ms from now to a deadline that is not known yet; empty: no deadline
-- ITEM: topic, received
--   topic: name of a topic
--   received: number of its last signal that the run has received
-- Flags: allow-oom
-- Uses: time, checkpoint
-- Unconfirmed: the script only reads
-- Answers: signal, timeout, none, fenced, bad, unreadable
--   signal: with the server's time, the deadline, the topic, its number, and the payload
--   timeout, none: with the server's time and the deadline (empty: none)
--   bad: an argument can't be read
--   unreadable: the key of the signals has another type, or the next signal of a topic can't be read
local clock = server_ms(now)
local owner_token = read_fields(run_key(id), 'token')
if owner_token ~= token then return { 'fenced' } end
if (deadline ~= '' and not natural(deadline)) or (timeout ~= '' and not natural(timeout)) then return { 'bad' } end
local till = tonumber(deadline) or (timeout ~= '' and clock + tonumber(timeout)) or nil
local shown = till and int(till) or ''

local found
for i = 1, items do
  local topic, received = item(i)
  received = natural(received)
  local numbers = redis.pcall('HMGET', signals_key(id), 'first:' .. topic, 'last:' .. topic)
  if not received then return { 'bad' } end
  if numbers.err then return { 'unreadable' } end
  local first, last = unpack(numbers)
  if first or last then
    -- A run that starts again from the beginning has received nothing; the oldest stored signal is then the next one.
    local number = math.max(received + 1, tonumber(first) or 1)
    local signal = redis.call('HGET', signals_key(id), int(number) .. ':' .. topic)
    local at, order, payload = string.match(signal or '', '^(%d+) (%d+) (.*)$')
    -- A damaged signal wakes the run again and again. Without this answer, its handler would wait for the signal forever.
    if not at and (signal or number <= (tonumber(last) or FAR_FUTURE)) then return { 'unreadable' } end
    -- The first call sets the deadline, so every stored signal was stored before the deadline.
    if at and (deadline == '' or tonumber(at) < till) and (not found or tonumber(order) < found.order) then
      found = { topic = topic, number = number, order = tonumber(order), payload = payload }
    end
  end
end
if found then return { 'signal', int(clock), shown, found.topic, int(found.number), found.payload } end
return { till and clock >= till and 'timeout' or 'none', int(clock), shown }
