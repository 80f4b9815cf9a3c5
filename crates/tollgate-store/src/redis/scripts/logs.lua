-- Logs, a kind of counter. Rust puts it after the other ones.
--
-- A log has one entry per instant, '<sum>:<cost>', where the sum is that of all costs so far. The sum of any
-- stretch is then a difference, and where a sum is reached is found by halving: however long the log, no
-- call walks it. Sums go around at 2^53, so a log never fills up.
--
-- The state: [1] the sum of what is in the window, [2] the newest instant, [3] how many entries have left
-- the window, [4] the window; `count` entries, the last of them `newest`; `sum` after it, `base` before
-- the first in the window; `added` to be written.

-- So many entries that have left are removed per call, or moved up when one is given back.
local MAX_MOVED = 500

local function plus(sum, cost)
  if sum > MOST - cost then return sum - (MOST - cost) - 1 end
  return sum + cost
end

local function minus(sum, cost)
  if sum < cost then return sum + (MOST - cost) + 1 end
  return sum - cost
end

local function entry(sum, cost)
  return string.format('%.0f:%.0f', sum, cost)
end

-- Sum and cost of an entry; nil if it is not ours.
local function read_entry(member)
  local sum, cost = string.match(member, '^(%d+):(%d+)$')
  if not sum then return nil end
  sum, cost = tonumber(sum), tonumber(cost)
  if sum > MOST or cost > MOST then return nil end
  return sum, cost
end

-- Sum, cost and instant of the entry at this rank.
local function entry_at(key, rank)
  local found = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
  if not found[2] then return nil end
  local sum, cost = read_entry(found[1])
  return sum, cost, tonumber(found[2])
end

local function read_log(key, length)
  local state = states[key]
  if state then return state end
  local last = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last.err then return nil end
  local used, instant, left, count, sum, base = 0, 0, 0, 0, 0, 0
  if last[1] then
    sum, instant = read_entry(last[1]), tonumber(last[2])
    if not sum or not whole(instant) then return nil end
    count, base = redis.call('ZCARD', key), sum
    if instant <= now - length then
      left = count
    else
      left = redis.call('ZCOUNT', key, '-inf', string.format('%.0f', now - length))
      local first, cost = entry_at(key, left)
      if not first then return nil end
      base = minus(first, cost)
      used = minus(sum, base)
    end
  end
  state = keep(key, LOG, used, instant, left, length)
  state.count, state.newest, state.sum, state.base, state.added = count, last[1], sum, base, 0
  return state
end

-- When so much of the log has left the window that what is left fits into `room`; nil if an entry is not
-- ours. Mostly a few entries are enough, so the steps begin small.
local function log_retry(state, key, length, room)
  local low, high, step, found = state[3], state.count - 1, 1, state[2]
  while low <= high do
    local rank = step and math.min(low + step - 1, high) or math.floor((low + high) / 2)
    local sum, _, instant = entry_at(key, rank)
    if not sum then return nil end
    if state[1] - minus(sum, state.base) <= room then
      found, high, step = instant, rank - 1, nil
    else
      low, step = rank + 1, step and step * 2
    end
  end
  return found + length
end

examine[LOG] = function(p, key, _, request, insists)
  local cost, quota, length = args[p], args[p + 1], args[p + 2]
  local state = read_log(key, length)
  if not state then return nil end
  local taken = pending(state, request)
  local used, room = state[1], quota - cost - taken
  local admits, retry_at = used <= room, 0
  if not admits and room >= 0 then
    retry_at = log_retry(state, key, length, room)
    if not retry_at then return nil end
  end
  put(admits and 1 or 0) put(used) put(state[2]) put(retry_at)
  if state[3] > 0 and prunes then change(state) end
  if admits or insists then state[6] = math.min(taken + cost, MOST) end
  return admits
end

charge[LOG] = function(p, key)
  local state = states[key]
  local cost = math.min(args[p], MOST - state[1])
  if cost == 0 then return end
  -- All charges of one call are of one instant.
  state.added = state.added + cost
  state[1], state.at = state[1] + cost, math.max(state[2], now)
  if state.at > state[2] then state[2], state.is_new = state.at, true end
  change(state)
end

write[LOG] = function(state)
  local key, left, added = state[9], state[3], state.added
  -- A log that has left as a whole goes without anybody's waiting for it.
  if left > 0 and left == state.count then
    redis.call('UNLINK', key)
    left = 0
  end
  if added > 0 then
    local sum, cost, before = plus(state.sum, added), added, nil
    if not state.is_new then
      local _, logged = read_entry(state.newest)
      cost, before = plus(logged, added), state.newest
    end
    -- First what may find no memory, then what needs none.
    redis.call('ZADD', key, state.at, entry(sum, cost))
    if before then redis.call('ZREM', key, before) end
  end
  if left > 0 then redis.call('ZREMRANGEBYRANK', key, 0, math.min(left, MAX_MOVED) - 1) end
  if added > 0 then redis.call('PEXPIRE', key, lifetime(state[2] + state[4])) end
end
