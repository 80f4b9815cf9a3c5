-- Giving back, for the scripts that do. Rust puts it after the counters.
--
-- A give-back undoes exactly when done at once, and later never leaves more room than if the charge had
-- not been made: a window counts only its own costs, a log its own entries, and a bucket its open charges.
-- Each returns false if the value is not ours; else true, and how much of the charge it has undone: a cost, or, of a
-- bucket, a span and its part.
--
-- Kinds of receipts and their figures, from args[p] on:
--   1 bucket             instant (MOST: what was charged last, whenever that was), span of the cost, its part, unit
--   2 window, 3 calendar instant, cost, end of the window
--   4 sliding            instant, cost, end of the window, length
--   5 log                instant, cost, length
--   6 slots              name
--   7 open charge        of a bucket: instant, span of the cost, its part, unit
--   9 the same, which becomes final instead (8 is in undo.lua)
local OPEN, CLOSE = 7, 9
local RECEIPT_WIDTH = {4, 3, 3, 4, 3, 1, 4, 7, 4}

-- Whether a receipt is of a charge that a reset has removed; `mark` is what reset.lua left, or false.
local function is_void(kind, p, mark)
  if not mark or kind == SLOTS or (kind == BUCKET and args[p] == MOST) then return false end
  return args[p] <= tonumber(mark)
end

-- How far a bucket is occupied ahead of now, and the unit of the part.
local function ahead_of_now(state)
  local ahead, part = subtract_span(state[1], state[2], now, 0, state[4])
  return ahead, part, state[4]
end

-- Changes an entry of the list of a bucket's refundable charges with `act`. A receipt of no entry changes nothing, not even
-- the rounding of the others.
local function change_open(p, key, value, act)
  if not value and not states[key] then return true, 0, 0 end
  local state = read_bucket(key, value)
  if not state then return false end
  if not (state.entries and find_entry(state, args[p])) then return true, 0, 0 end
  adopt(state, args[p + 3])
  local ahead, ahead_part = ahead_of_now(state)
  act(state, args[p], args[p + 1], args[p + 2])
  change(state)
  return true, subtract_span(ahead, ahead_part, ahead_of_now(state))
end

local function give_back()
  local to = {}

  to[BUCKET] = function(p, key, value)
    if not value and not states[key] then return true, 0, 0 end
    local state = read_bucket(key, value)
    if not state then return false end
    local at, span, span_part, unit = args[p], args[p + 1], args[p + 2], args[p + 3]
    -- A charge that was not refundable is undone in its own instant only.
    if at ~= MOST and at ~= math.max(now, state[3]) then return true, 0, 0 end
    adopt(state, unit)
    -- An arrival time at the end of time no longer says what it is the sum of.
    if state[1] >= MOST then return true, 0, 0 end
    local ahead, ahead_part = ahead_of_now(state)
    if state.entries then
      if at ~= MOST and not is_after_entries(state, span, span_part) then return true, 0, 0 end
      refund_latest(state, span, span_part)
    else
      span, span_part = sooner_span(span, span_part, ahead, ahead_part)
      state[1], state[2] = subtract_span(state[1], state[2], span, span_part, unit)
      note_lowered(state, at == MOST and 0 or at, span, span_part)
    end
    change(state)
    return true, subtract_span(ahead, ahead_part, ahead_of_now(state))
  end

  to[OPEN] = function(p, key, value) return change_open(p, key, value, refund_open) end
  to[CLOSE] = function(p, key, value) return change_open(p, key, value, close_open) end

  local function to_window(p, key, value, kind)
    if not value and not states[key] then return true, 0 end
    local state = read_window(key, value, kind)
    if not state then return false end
    -- A count that has stopped at the end no longer says what it is the sum of.
    if state[1] ~= args[p + 2] or state[2] >= MOST then return true, 0 end
    local returned = math.min(state[2], args[p + 1])
    state[2] = state[2] - returned
    change(state)
    return true, now < state[1] and returned or 0
  end

  to[WINDOW] = function(p, key, value) return to_window(p, key, value, WINDOW) end
  to[CALENDAR] = function(p, key, value) return to_window(p, key, value, CALENDAR) end

  to[SLIDING] = function(p, key, value)
    if not value and not states[key] then return true, 0 end
    local state = read_window(key, value, SLIDING)
    if not state then return false end
    local cost, ends, length = args[p + 1], args[p + 2], args[p + 3]
    local place = state[1] == ends and 2 or state[1] == ends + length and 3 or nil
    if not place or state[place] >= MOST then return true, 0 end
    local returned = math.min(state[place], cost)
    state[place], state[4] = state[place] - returned, length
    change(state)
    return true, now < ends + length and returned or 0
  end

  -- The sums of all later entries move, so that is done at once, and only if they are few: a give-back
  -- that comes so late that they are many returns nothing until the charge leaves the window.
  to[LOG] = function(p, key)
    local at, back, length = args[p], args[p + 1], args[p + 2]
    local state = read_log(key, length)
    if not state then return false end
    local from = string.format('%.0f', at)
    if back == 0 or redis.call('ZCOUNT', key, from, '+inf') > MAX_MOVED then return true, 0 end
    local entries = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES')
    if tonumber(entries[2]) ~= at then return true, 0 end
    local old, new = {}, {}
    for i = 1, #entries, 2 do
      local sum, cost = read_entry(entries[i])
      if not sum then return false end
      if i == 1 then back = math.min(back, cost) end
      old[#old + 1] = entries[i]
      if i > 1 then
        new[#new + 1], new[#new + 2] = entries[i + 1], entry(minus(sum, back), cost)
      elseif cost > back then
        new[1], new[2] = entries[2], entry(minus(sum, back), cost - back)
      end
    end
    -- A sum that moves may be what another's was. After the first write none is short of memory.
    redis.call('ZREM', key, unpack(old))
    if #new > 0 then redis.call('ZADD', key, unpack(new)) end
    states[key] = nil
    state = read_log(key, length)
    if state and state.count > 0 then
      redis.call('PEXPIRE', key, lifetime(state[2] + length))
    end
    return true, now < at + length and back or 0
  end

  to[SLOTS] = function(p, key)
    local answer = redis.pcall('ZREM', key, args[p])
    return not (type(answer) == 'table' and answer.err), 0
  end

  return to
end
