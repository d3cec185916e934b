-- External calls that share a rate. The rate of a name is a bucket: each call adds its cost to the level, the level falls with
-- time, and a call may start while the level stays at or below the burst. calls.lua has the requests.
local LEAST_TICKET = 0.001 -- requests without a cost need different tickets, too
local LOOK_AHEAD_MS = 100
local MOST_HINTS = 10

-- Return the ticket for the next request that waits, if the bucket was lost: behind the last one in the line.
local function next_ticket(name)
  local _, last = unpack(redis.call('ZRANGE', turns_key(name), -1, -1, 'WITHSCORES'))
  return (tonumber(last) or 0) + LEAST_TICKET
end

-- Return a number of the bucket; nil if it is missing or can't be read. A number that is not finite would never expire.
local function finite(text)
  local number = tonumber(text)
  return number and math.abs(number) < FAR_FUTURE and number or nil
end

-- Return the bucket of a name as it is now; nil if a key has a wrong type. A clock that was set back neither raises the level nor
-- stops it from falling, and does not prolong a back-off. `seen` is the highest number that the worker has sent for the name. `front`
-- is the ticket that the first request of the line has, if no gap is before it; nil if it is not known. Requests with a ticket below
-- `late` may have been told a time that is too late.
local function read_bucket(name, speed, clock, worker)
  local values = redis.pcall('HMGET', bucket_key(name), 'level', 'at', 'resumes', 'pause', 'ticket', 'settled', 'front', 'late',
    'seen:' .. worker)
  local held, waiting = redis.pcall('ZCARD', holders_key(name)), redis.pcall('ZCARD', turns_key(name))
  if values.err or type(held) ~= 'number' or type(waiting) ~= 'number' then return nil end
  local level, at, resumes, pause, ticket, settled, front, late, seen = unpack(values)
  level, at, resumes, pause = finite(level) or 0, finite(at) or clock, finite(resumes) or 0, finite(pause) or 0
  return {
    level = math.max(0, level - math.max(0, clock - at) * speed),
    resumes = math.min(resumes, clock + pause), pause = pause,
    ticket = waiting == 0 and 0 or finite(ticket) or next_ticket(name), settled = settled or '0', seen = finite(seen) or 0,
    front = waiting > 0 and finite(front) or nil, late = waiting > 0 and finite(late) or 0,
    held = held, waiting = waiting, new = not seen,
  }
end

-- Return how many requests at the front of the line must know their time exactly: those that start within LOOK_AHEAD_MS.
local function look_ahead(rate, cost)
  return math.max(1, math.min(MOST_HINTS, math.ceil(rate.speed * LOOK_AHEAD_MS / math.max(cost, LEAST_TICKET))))
end

-- Let the requests of the line ask again, because tokens were given back: the first request, and all that may start now. The others
-- get their hints when they come near the front.
local function offer_tokens(name, rate, bucket)
  if rate.speed == 0 or bucket.waiting == 0 then return end
  bucket.late = bucket.ticket
  local _, first = find_turn(name, 0)
  if not first then return end
  local free = string.format('(%.17g', first + rate.burst - bucket.level)
  hint_turns(name, 0, math.max(1, math.min(MOST_HINTS, redis.call('ZCOUNT', turns_key(name), '-inf', free))) - 1)
end

-- Look for a gap before the first request of the line, which has the ticket `first`. If there is one, all requests of the line may
-- start earlier than they were told. Requests that wait only for a place get their hints from call_next.
local function close_gap(name, rate, bucket, cost, first, asker)
  local timed = rate.speed > 0 or bucket.held + 1 < rate.at_once
  local gap = timed and first - (bucket.front or first) > LEAST_TICKET / 2
  bucket.front = first
  if gap then
    bucket.late = bucket.ticket
    hint_turns(name, 0, look_ahead(rate, cost) - 1, asker)
  end
  return gap
end

-- Remove the turn of a request that starts. `rank` is the number of requests before it, which have not asked yet. They move up by the
-- size of its ticket, so that no gap is left: the level has the cost of the request now, and the line must not count it again. If the
-- requests of the line were told a time that is too late, the first one asks again, and the one that comes near the front.
local function take_turn(name, rate, bucket, request, cost, rank)
  redis.call('ZREM', turns_key(name), request)
  if rank <= MOST_HINTS then
    local size = math.max(cost, LEAST_TICKET)
    for _, other in ipairs(rank > 0 and redis.call('ZRANGE', turns_key(name), 0, rank - 1) or {}) do
      redis.call('ZINCRBY', turns_key(name), string.format('%.17g', size), other)
    end
    bucket.front = bucket.front and bucket.front + size
  end
  local _, first = find_turn(name, 0)
  if not first or close_gap(name, rate, bucket, cost, first) then return end
  if first >= bucket.late then return end
  hint_turns(name, 0, 0)
  local last = look_ahead(rate, cost) - 1
  if last > 0 then hint_turns(name, last, last) end
end

-- Store the bucket. It expires when its level is 0 and the requests that wait have asked again, but not before late calls have
-- arrived.
local function write_bucket(name, bucket, speed, clock, worker)
  redis.call('HSET', bucket_key(name), 'level', string.format('%.17g', bucket.level), 'at', int(clock), 'resumes', int(bucket.resumes),
    'pause', int(bucket.pause), 'ticket', string.format('%.17g', bucket.ticket), 'settled', bucket.settled,
    'late', string.format('%.17g', bucket.late))
  if bucket.front then redis.call('HSET', bucket_key(name), 'front', string.format('%.17g', bucket.front)) end
  if worker ~= '' then redis.call('HSET', bucket_key(name), 'seen:' .. worker, int(bucket.seen)) end
  local idle = math.max(speed > 0 and math.ceil((bucket.level + bucket.ticket) / speed) or 0, bucket.resumes - clock, 0)
  redis.call('PEXPIRE', bucket_key(name), int(idle + TOMBSTONE_MS))
end
