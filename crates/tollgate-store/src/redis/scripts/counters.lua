-- Counters: reading, examining, charging and writing them. Rust puts it after the common part, before
-- the scripts that decide.
--
-- A state is read once per call, kept in `states`, changed there, and written at the end if it was
-- changed: whatever can fail has failed by then. A script judges and charges; the figures that callers
-- see are worked out by the node from the state before.
--
-- Kinds and their parameters, from args[p] on:
--   1 bucket    room, room_part, span, span_part, unit, refundable (0 no, or see open_charges.lua): passes
--               iff the line is occupied for at most `room` ahead of now (-1: never); a part counts in 1/unit
--               microseconds
--   2 window    cost, quota, length
--   3 calendar  cost, quota, and four instants that bound three neighbouring windows
--   4 sliding   cost, quota, length
--   5 log       cost, quota, length
--   6 slots     name, quota, lifetime
local BUCKET, WINDOW, CALENDAR, SLIDING, LOG, SLOTS = 1, 2, 3, 4, 5, 6
-- So many held slots are compared with those that the same call has taken.
local MAX_SLOTS_COMPARED = 1000
local WIDTH = {6, 3, 6, 3, 3, 3}

local states = {}
local foreign = {}
local changed_states = {}
-- Whether what has left a log may be removed, which nobody can tell, but which is a write.
local prunes = true

local function whole(value)
  return value >= 0 and value <= MOST and value % 1 == 0
end

-- A bound of a range of scores, itself not in it. (Plain concatenation would round the number.)
local function after(instant)
  return string.format('(%.0f', instant)
end

local function put(value)
  out_n = out_n + 1
  out[out_n] = value
end

-- Every state: [5] the number of the request that examined it last, and what that request would
-- charge before ([6], [7]); [8] whether it is to be written; [9] its key; [10] its kind.
local function keep(key, kind, first, second, third, fourth)
  local state = {first, second, third, fourth, 0, 0, 0, false, key, kind}
  states[key] = state
  return state
end

local function change(state)
  if not state[8] then
    state[8] = true
    changed_states[#changed_states + 1] = state
  end
end

-- A bucket: [1] its arrival time, [2] the part of a microsecond above it, [3] the instant of its last refundable
-- charge, or 0, [4] the unit of the part; `entries`, `base`, `base_part`, `lowered`, `lowered_from`, `lowered_at`: see
-- open_charges.lua. Values of 32 bytes end with a figure that earlier versions kept.
local function read_bucket(key, value)
  local state = states[key]
  if state then return state end
  local tat, part, unit, head, entries = 0, 0, 1, nil, nil
  if value then
    local length = #value
    if length == 8 then
      tat = struct.unpack('<d', value)
    elseif length == 32 then
      tat, part, unit = struct.unpack('<ddd', value)
    else
      head, entries = read_open(value)
      if not head then return nil end
      tat, part, unit = head[1], head[2], head[3]
      for i = 4, 8 do
        if not whole(head[i]) then return nil end
      end
    end
    if not (whole(tat) and whole(part) and whole(unit)) then return nil end
  elseif foreign[key] then
    return nil
  end
  state = keep(key, BUCKET, tat, part, 0, unit)
  if head then
    state.lowered_from, state.lowered_at, state.lowered = head[6], head[7], head[8]
    if #entries > 0 then
      state.entries, state.base, state.base_part = entries, head[4], head[5]
      last_instant(state)
    end
  end
  return state
end

-- A part that another quota has left behind is rounded up.
local function adopt(state, unit)
  if state[4] ~= unit then
    if state.entries then
      adopt_open(state, unit)
    elseif state[2] > 0 then
      state[1], state[2] = state[1] + 1, 0
    end
    if state[7] > 0 then state[6], state[7] = state[6] + 1, 0 end
    state[4] = unit
  end
end

-- A window or sliding counter: [1] the window's end, [2] its count, [3] the count before.
local function read_window(key, value, kind)
  local state = states[key]
  if state then return state end
  local ends, count, before = 0, 0, 0
  if value then
    if kind == SLIDING and #value == 24 then
      ends, count, before = struct.unpack('<ddd', value)
    elseif kind ~= SLIDING and #value == 16 then
      ends, count = struct.unpack('<dd', value)
    else
      return nil
    end
    if not (whole(ends) and whole(count) and whole(before)) then return nil end
  elseif foreign[key] then
    return nil
  end
  return keep(key, kind, ends, count, before, 0)
end

-- Slots: [1] how many are held, [2] when the last of them expires; `added`: name -> expiry, to be
-- written; `named`: names that the present request would take before.
local function read_slots(key)
  local state = states[key]
  if state then return state end
  local last = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last.err then return nil end
  local held, latest = 0, 0
  if last[2] then
    latest = tonumber(last[2])
    if latest > now then held = redis.call('ZCOUNT', key, after(now), '+inf') end
  end
  state = keep(key, SLOTS, held, latest, 0, 0)
  state.added, state.named = {}, {}
  return state
end

-- What earlier charges of the same request to the same counter would take.
local function pending(state, request)
  if state[5] ~= request then
    state[5], state[6], state[7] = request, 0, 0
    if state.named then state.named = {} end
  end
  return state[6]
end

-- a * b <= c * d, exactly, for whole numbers below 2^53 whose products are not.
local function limbs(a, b)
  local base = 262144
  local a0, a1, a2 = a % base, math.floor(a / base) % base, math.floor(a / base / base)
  local b0, b1, b2 = b % base, math.floor(b / base) % base, math.floor(b / base / base)
  local sums = {a0 * b0, a0 * b1 + a1 * b0, a0 * b2 + a1 * b1 + a2 * b0, a1 * b2 + a2 * b1, a2 * b2, 0}
  for i = 1, 5 do
    sums[i + 1] = sums[i + 1] + math.floor(sums[i] / base)
    sums[i] = sums[i] % base
  end
  return sums
end

local function product_at_most(a, b, c, d)
  local left, right = a * b, c * d
  local doubt = right / 1125899906842624
  if left < right - doubt then return true end
  if left > right + doubt then return false end
  local x, y = limbs(a, b), limbs(c, d)
  for i = 6, 1, -1 do
    if x[i] ~= y[i] then return x[i] < y[i] end
  end
  return true
end

-- examine[kind](p, key, value, request, insists) says whether the charge passes, and puts that and the
-- state before into the answer; nil: the value is not ours; 'outside': no window fits. A charge that
-- passes, or insists, counts against later ones of the same request.
local examine, charge, write = {}, {}, {}

examine[BUCKET] = function(p, key, value, request, insists)
  local state = states[key] or read_bucket(key, value)
  if not state then return nil end
  local unit = args[p + 4]
  if state[5] ~= request then state[5], state[6], state[7] = request, 0, 0 end
  if state[4] ~= unit then adopt(state, unit) end
  local tat, tat_part, taken, taken_part = state[1], state[2], state[6], state[7]
  local ahead, part = tat - now, tat_part
  if ahead < 0 then ahead, part = 0, 0 end
  ahead = ahead + taken
  if part >= unit - taken_part then
    ahead, part = ahead + 1, part - (unit - taken_part)
  else
    part = part + taken_part
  end
  local room = args[p]
  local admits = ahead < room or (ahead == room and part <= args[p + 1])
  local n = out_n
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = admits and 1 or 0, tat, tat_part, state[3]
  out[n + 5] = args[p + 5] > 0 and taken == 0 and taken_part == 0 and crowding(state, args[p + 5]) or 0
  out_n = n + 5
  if admits or insists then
    local span_part = args[p + 3]
    taken = taken + args[p + 2]
    if taken_part >= unit - span_part then
      taken, taken_part = taken + 1, taken_part - (unit - span_part)
    else
      taken_part = taken_part + span_part
    end
    if taken > MOST then taken = MOST end
    state[6], state[7] = taken, taken_part
  end
  return admits
end

charge[BUCKET] = function(p, key)
  local state, span, span_part, unit = states[key], args[p + 2], args[p + 3], args[p + 4]
  if span == 0 and span_part == 0 then return end
  if state[4] ~= unit then adopt(state, unit) end
  if args[p + 5] > 0 or state.entries then
    charge_open(state, span, span_part, args[p + 5])
    change(state)
    return
  end
  local tat, part = state[1], state[2]
  if tat < now then tat, part = now, 0 end
  tat = tat + span
  if part >= unit - span_part then
    tat, part = tat + 1, part - (unit - span_part)
  else
    part = part + span_part
  end
  if tat > MOST then tat, part = MOST, 0 end
  state[1], state[2] = tat, part
  change(state)
end

write[BUCKET] = function(state)
  local tat, part = state[1], state[2]
  local fresh_at = tat + (part > 0 and 1 or 0)
  local value
  if is_lowered(state) then
    fresh_at = math.max(fresh_at, state.lowered_at + LOWERED_KEPT)
    value = write_open(state)
  elseif fresh_at <= now then
    redis.call('DEL', state[9])
    return
  elseif state.entries and #state.entries > 0 then
    value = write_open(state)
  elseif part == 0 then
    value = struct.pack('<d', tat)
  else
    value = struct.pack('<dddd', tat, part, state[4], 0)
  end
  redis.call('PSETEX', state[9], lifetime(fresh_at), value)
end

local function window_end(p, kind)
  if kind ~= CALENDAR then
    local length = args[p + 2]
    return now - now % length + length
  end
  for i = p + 2, p + 4 do
    if args[i] <= now and now < args[i + 1] then return args[i + 1] end
  end
  return nil
end

local function examine_window(p, key, value, request, insists, kind)
  local state = read_window(key, value, kind)
  if not state then return nil end
  local before, count = pending(state, request), state[2]
  if now >= state[1] then
    count = 0
    if not window_end(p, kind) then return 'outside' end
  end
  local cost = args[p]
  local admits = count <= args[p + 1] - cost - before
  put(admits and 1 or 0) put(state[1]) put(state[2])
  if admits or insists then state[6] = math.min(before + cost, MOST) end
  return admits
end

local function charge_window(p, key, kind)
  local state, cost = states[key], args[p]
  if cost == 0 then return end
  if now >= state[1] then state[1], state[2] = window_end(p, kind), 0 end
  state[2] = math.min(state[2] + cost, MOST)
  change(state)
end

examine[WINDOW] = function(p, key, value, request, insists)
  return examine_window(p, key, value, request, insists, WINDOW)
end

examine[CALENDAR] = function(p, key, value, request, insists)
  return examine_window(p, key, value, request, insists, CALENDAR)
end

charge[WINDOW] = function(p, key) charge_window(p, key, WINDOW) end
charge[CALENDAR] = function(p, key) charge_window(p, key, CALENDAR) end

write[WINDOW] = function(state)
  if state[2] == 0 or state[1] <= now then
    redis.call('DEL', state[9])
  else
    redis.call('PSETEX', state[9], lifetime(state[1]), struct.pack('<dd', state[1], state[2]))
  end
end
write[CALENDAR] = write[WINDOW]

-- The counts as seen from the window that now falls in.
local function rolled(state, length)
  if now < state[1] then return state[1], state[2], state[3] end
  local ends = now - now % length + length
  return ends, 0, ends == state[1] + length and state[2] or 0
end

examine[SLIDING] = function(p, key, value, request, insists)
  local state = read_window(key, value, SLIDING)
  if not state then return nil end
  local taken, cost, length = pending(state, request), args[p], args[p + 2]
  local ends, count, before = rolled(state, length)
  local room = args[p + 1] - cost - taken - count
  local admits = room >= 0
  if admits and before > 0 then
    admits = product_at_most(before, math.min(ends - now, length), room, length)
  end
  put(admits and 1 or 0) put(state[1]) put(state[2]) put(state[3])
  if admits or insists then state[6] = math.min(taken + cost, MOST) end
  return admits
end

charge[SLIDING] = function(p, key)
  local state, cost = states[key], args[p]
  if cost == 0 then return end
  state[1], state[2], state[3] = rolled(state, args[p + 2])
  state[2] = math.min(state[2] + cost, MOST)
  state[4] = args[p + 2]
  change(state)
end

write[SLIDING] = function(state)
  local fresh_at = 0
  if state[2] > 0 then
    fresh_at = state[1] + state[4]
  elseif state[3] > 0 then
    fresh_at = state[1]
  end
  if fresh_at <= now then
    redis.call('DEL', state[9])
  else
    local value = struct.pack('<ddd', state[1], state[2], state[3])
    redis.call('PSETEX', state[9], lifetime(fresh_at), value)
  end
end

local function own_slot(state, key, name)
  local expires = state.added[name]
  if expires then return expires end
  expires = redis.call('ZSCORE', key, name)
  if expires and tonumber(expires) > now then return tonumber(expires) end
  return 0
end

-- When the slot at this place expires, counted from 0 and soonest first; nil if fewer are held. Slots that
-- earlier requests of this call have taken are not written yet.
local function expiry_at(state, key, place)
  local all = {}
  for _, expires in pairs(state.added) do all[#all + 1] = expires end
  local first, count = place, 1
  if #all > 0 and place < MAX_SLOTS_COMPARED then first, count = 0, place + 1 + #all end
  local held = redis.call('ZRANGEBYSCORE', key, after(now), '+inf', 'WITHSCORES', 'LIMIT', first, count)
  if count == 1 then return tonumber(held[2]) end
  for i = 1, #held, 2 do
    if not state.added[held[i]] then all[#all + 1] = tonumber(held[i + 1]) end
  end
  table.sort(all)
  return all[place + 1]
end

examine[SLOTS] = function(p, key, _, request, insists)
  local name, quota, length = args[p], args[p + 1], args[p + 2]
  local state = read_slots(key)
  if not state then return nil end
  local taken = pending(state, request)
  local own = own_slot(state, key, name)
  local held = state[1] + taken
  local mine = own > 0 or state.named[name] == true
  local admits, retry_at = quota > 0 and (held < quota or mine), 0
  if not admits and quota > taken then
    retry_at = expiry_at(state, key, held - quota) or now + length
  end
  put(admits and 1 or 0) put(state[1]) put(own) put(state[2]) put(retry_at)
  if (admits or insists) and not mine then
    state.named[name] = true
    state[6] = taken + 1
  end
  return admits
end

charge[SLOTS] = function(p, key)
  local state, name = states[key], args[p]
  local own = own_slot(state, key, name)
  if own == 0 then state[1] = state[1] + 1 end
  local expires = math.min(math.max(own, now + args[p + 2]), MOST)
  state.added[name] = expires
  state[2] = math.max(state[2], expires)
  change(state)
end

write[SLOTS] = function(state)
  local key, members = state[9], {}
  for name, expires in pairs(state.added) do
    members[#members + 1] = expires
    members[#members + 1] = name
  end
  if #members > 0 then redis.call('ZADD', key, unpack(members)) end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('PEXPIRE', key, lifetime(state[2]))
end

local function write_all()
  for i = 1, #changed_states do
    local state = changed_states[i]
    write[state[10]](state)
  end
end
