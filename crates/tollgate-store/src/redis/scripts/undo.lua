-- Undoes a call of decide.lua whose answer nobody received, once.
--
-- KEYS[2]     where that call's answer is remembered
-- KEYS[3..]   the counters of that call, in its order, and after them their marks (see reset.lua)
-- ARGV[1]     [4] for how many milliseconds that call must not run any more; [5] a letter per request of
--             that call: 'u' to undo it, 'k' to keep it; [6..] what that call was about, as decide.lua
--             reads it
-- result      0 that call has not run, and will not; 1 undone; 2 undone before; and how many requests
--             were refunded
--
-- The answer is replaced by that of a call that came too late: common.lua gives it to any late copy of the
-- call, which then does nothing.

local answer = redis.call('GET', KEYS[2])
local seen = answer and cmsgpack.unpack(answer)
if seen and seen[1] == 1 then
  put(2) put(seen[3] or 0)
  return finish(false)
end

-- How many numbers decide.lua answers per charge.
local SEEN_WIDTH = {5, 3, 3, 4, 4, 5}
local OWE = 2
-- The receipt of a charge to a bucket that was not made refundable, see `undo_final`; receipts.lua has the other kinds.
local FINAL = 8
local charged_at = seen and seen[2]
-- Where the buckets of the present request ended after its earlier charges, and the instants of their last entries.
local lines = {}

local function end_of_window(ends, length)
  if charged_at < ends then return ends end
  return charged_at - charged_at % length + length
end

-- receipt[kind](p, s, key): the receipt of a charge, as receipts.lua reads it, from its parameters at
-- args[p] and what decide.lua saw at seen[s]; nil: nothing is to be given back.
local receipt = {}

-- A charge that was made refundable is an entry of the bucket's list. Any other one followed the entry that was the
-- last at that time, if there was one, and is undone there by `undo_final`.
receipt[BUCKET] = function(p, s, key)
  local span, span_part, unit = args[p + 2], args[p + 3], args[p + 4]
  local line = lines[key] or {seen[s + 1], seen[s + 2], seen[s + 3]}
  lines[key] = line
  local latest = line[3]
  local at = math.max(charged_at, latest)
  local tat, part = later_span(line[1], line[2], at, 0)
  line[1], line[2] = add_spans(tat, part, span, span_part, unit)
  if args[p + 5] > 0 then
    line[3] = at
    return {at, span, span_part, unit}, OPEN
  end
  return {at, latest, line[1], line[2], span, span_part, unit}, FINAL
end

receipt[WINDOW] = function(p, s)
  return {charged_at, args[p], end_of_window(seen[s + 1], args[p + 2])}
end

receipt[CALENDAR] = function(p, s)
  if charged_at < seen[s + 1] then return {charged_at, args[p], seen[s + 1]} end
  for i = p + 2, p + 4 do
    if args[i] <= charged_at and charged_at < args[i + 1] then
      return {charged_at, args[p], args[i + 1]}
    end
  end
  return nil
end

receipt[SLIDING] = function(p, s)
  return {charged_at, args[p], end_of_window(seen[s + 1], args[p + 2]), args[p + 2]}
end

receipt[LOG] = function(p, s)
  local cost = math.min(args[p], MOST - seen[s + 1])
  return {math.max(seen[s + 2], charged_at), cost, args[p + 2]}
end

-- A slot is one however often it is taken: it is released only if nobody has taken or renewed it since.
receipt[SLOTS] = function(p, s, key)
  if seen[s + 2] > 0 then return nil end
  local expires = redis.pcall('ZSCORE', key, args[p])
  if type(expires) ~= 'string' then return nil end
  if tonumber(expires) ~= math.min(charged_at + args[p + 2], MOST) then return nil end
  return {args[p]}
end

local refunded = 0
-- The charges to be undone, in the order in which they were made.
local due = {}

local function collect()
  local values = #KEYS > 2 and redis.call('MGET', unpack(KEYS, 3)) or {}
  local at, s, k, request, count = 6, 3, 0, 0, (#KEYS - 2) / 2
  while args[at] do
    local mode, charges, verdict = args[at], args[at + 1], seen[s]
    at, s, request, lines = at + 2, s + 1, request + 1, {}
    local is_undone = verdict == 1 and string.sub(args[5], request, request) == 'u'
    if is_undone then refunded = refunded + 1 end
    for _ = 1, charges do
      k = k + 1
      local kind, key = args[at], KEYS[k + 2]
      local mark = values[count + k]
      local is_reset = mark and kind ~= SLOTS and charged_at <= tonumber(mark)
      if is_undone and not is_reset and (mode == OWE or seen[s] == 1) then
        local figures, of_kind = receipt[kind](at + 2, s, key)
        if figures then due[#due + 1] = {of_kind or kind, figures, key, values[k]} end
      end
      if verdict <= 1 then s = s + SEEN_WIDTH[kind] end
      at = at + 2 + WIDTH[kind]
    end
  end
end

-- Takes a final charge out of those that followed the entry at this place. The entries stay as they are.
--
-- The others of them were charged until `latest` at the latest, so they end no later than if all had been charged then.
-- Which of them the floor comes from is not known: it is lowered to that, and no further.
local function remove_final(state, index, span, span_part)
  local unit, entry, following = state[4], entry_at_place(state, index), state.entries[index + 1]
  local latest = following and entry_at_place(state, index + 1)[1] or math.max(now, entry[1])
  entry[5], entry[6] = subtract_span(entry[5], entry[6], span, span_part, unit)
  local floor, floor_part = add_spans(latest, 0, entry[5], entry[6], unit)
  entry[7], entry[8] = sooner_span(entry[7], entry[8], floor, floor_part)
  replay(state)
end

-- When a charge before the first entry ends, at the least: as if it were alone, or as it was charged, less what was taken
-- off charges before it since. That much is known unless refundable charges were before it.
local function end_in_base(state, p, base, base_part)
  local at, span, span_part, unit = args[p], args[p + 4], args[p + 5], args[p + 6]
  local ends, ends_part = add_spans(at, 0, span, span_part, unit)
  if args[p + 1] > 0 or at + LOWERED_KEPT <= now then return ends, ends_part end
  local known, known_part = args[p + 2], args[p + 3]
  if is_lowered(state) and state.lowered_from <= at and at <= state.lowered_at then
    known, known_part = subtract_span(known, known_part, state.lowered, 0, unit)
  end
  -- A bucket that ends sooner has lost charges.
  if base < known or (base == known and base_part < known_part) then return ends, ends_part end
  return later_span(ends, ends_part, known, known_part)
end

-- What this call takes off the final charges before the first entry: state -> {instant, span, its part}. Of two charges of
-- a call the later one is undone first, which does not move the other.
local lowered = {}

-- Takes a final charge out of those before the first entry. One that ends ahead of now has been followed by charges
-- only, and the bucket was never empty since: it still occupies what lies ahead of now, at most its span.
local function lower_base(state, p)
  local unit, base, base_part = args[p + 6], state[1], state[2]
  if state.entries then base, base_part = state.base, state.base_part end
  local ends, ends_part = end_in_base(state, p, base, base_part)
  local ahead, ahead_part = subtract_span(ends, ends_part, now, 0, unit)
  local span, span_part = sooner_span(args[p + 4], args[p + 5], ahead, ahead_part)
  base, base_part = subtract_span(base, base_part, span, span_part, unit)
  if state.entries then
    state.base, state.base_part = base, base_part
    replay(state)
  else
    state[1], state[2] = base, base_part
  end
  local sum = lowered[state] or {args[p], 0, 0}
  sum[1] = math.min(sum[1], args[p])
  sum[2], sum[3] = add_spans(sum[2], sum[3], span, span_part, unit)
  lowered[state] = sum
end

-- Its figures: the instant of the charge, that of the last entry before it or 0, its end, its span, and the unit.
local function undo_final(p, key, value)
  local state = (value or states[key]) and read_bucket(key, value)
  if not state then return end
  adopt(state, args[p + 6])
  -- An arrival time at the end of time no longer says what it is the sum of.
  if state[1] >= MOST then return end
  local index = state.entries and #state.entries or 0
  while index > 0 and entry_at_place(state, index)[1] > args[p + 1] do index = index - 1 end
  if index > 0 then
    remove_final(state, index, args[p + 4], args[p + 5])
  else
    lower_base(state, p)
  end
  change(state)
end

-- The last charge first, so that every charge to a bucket finds those that came after it.
local function undo_all()
  local return_to = give_back()
  return_to[FINAL] = undo_final
  for i = #due, 1, -1 do
    local kind, figures, key, value = due[i][1], due[i][2], due[i][3], due[i][4]
    local free = #args
    for j = 1, #figures do args[free + j] = figures[j] end
    return_to[kind](free + 1, key, value)
  end
  for state, sum in pairs(lowered) do note_lowered(state, sum[1], sum[2], sum[3]) end
  write_all()
end

-- First of all, because it may find no memory; giving back needs none.
local function forbid(count)
  redis.call('SET', KEYS[2], cmsgpack.pack({1, now, count}), 'PX', string.format('%.0f', args[4]))
end

forbid(0)
if not seen then
  put(0) put(0)
  return finish(true)
end
collect()
undo_all()
forbid(refunded)
put(1) put(refunded)
return finish(true)
