-- Giving back, for the scripts that do. Rust puts it after the counters.
--
-- A give-back undoes exactly when done at once, and later never leaves more room than if the charge had
-- not been made: a window counts only its own costs, a log its own entries, and a bucket gets back at
-- most what the charge still occupies. Each returns false if the value is not ours.

local RECEIPT_WIDTH = {5, 2, 2, 3, 3, 1}

local function give_back()
  local to = {}

  to[BUCKET] = function(p, key, value)
    if not value and not states[key] then return true end
    local state = read_bucket(key, value)
    if not state then return false end
    local ends, ends_part, span, span_part, unit =
      args[p], args[p + 1], args[p + 2], args[p + 3], args[p + 4]
    adopt(state, unit)
    local tat, part, shift = state[1], state[2], state[3]
    -- A line that reaches the end of time has lost count of what is on it.
    if tat + shift >= MOST then return true end
    local ahead, ahead_part = ends - shift - now, ends_part
    if ahead < 0 or (ahead == 0 and ahead_part == 0) then return true end
    if span < ahead or (span == ahead and span_part < ahead_part) then
      ahead, ahead_part = span, span_part
    end
    if ahead == 0 and ahead_part == 0 then return true end
    local is_last = ends == tat + shift and ends_part == part
    if part >= ahead_part then
      tat, part = tat - ahead, part - ahead_part
    else
      tat, part = tat - ahead - 1, part + (unit - ahead_part)
    end
    if tat < 0 then tat, part = 0, 0 end
    if not is_last then shift = shift + ahead + (ahead_part > 0 and 1 or 0) end
    state[1], state[2], state[3] = tat, part, math.min(shift, MOST)
    change(state)
    return true
  end

  local function to_window(p, key, value, kind)
    if not value and not states[key] then return true end
    local state = read_window(key, value, kind)
    if not state then return false end
    -- A count that has stopped at the end no longer says what it is the sum of.
    if state[1] == args[p] and state[2] < MOST then
      state[2] = math.max(state[2] - args[p + 1], 0)
      change(state)
    end
    return true
  end

  to[WINDOW] = function(p, key, value) return to_window(p, key, value, WINDOW) end
  to[CALENDAR] = function(p, key, value) return to_window(p, key, value, CALENDAR) end

  to[SLIDING] = function(p, key, value)
    if not value and not states[key] then return true end
    local state = read_window(key, value, SLIDING)
    if not state then return false end
    local ends, cost, length = args[p], args[p + 1], args[p + 2]
    local place = state[1] == ends and 2 or state[1] == ends + length and 3 or nil
    if place and state[place] < MOST then
      state[place], state[4] = math.max(state[place] - cost, 0), length
      change(state)
    end
    return true
  end

  -- The sums of all later entries move, so that is done at once, and only if they are few: a give-back
  -- that comes so late that they are many returns nothing until the charge leaves the window.
  to[LOG] = function(p, key)
    local at, back, length = args[p], args[p + 1], args[p + 2]
    local state = read_log(key, length)
    if not state then return false end
    local from = string.format('%.0f', at)
    if back == 0 or redis.call('ZCOUNT', key, from, '+inf') > MOST_MOVED then return true end
    local entries = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES')
    if tonumber(entries[2]) ~= at then return true end
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
    return true
  end

  to[SLOTS] = function(p, key)
    local answer = redis.pcall('ZREM', key, args[p])
    return not (type(answer) == 'table' and answer.err)
  end

  return to
end
