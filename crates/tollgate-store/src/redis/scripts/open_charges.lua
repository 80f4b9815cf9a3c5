-- Buckets some of whose charges can be refunded later. Rust puts it after the common part, before the counters.
-- `core/src/open_bucket.rs` explains the list; this is the same in microseconds, and both pass the same vectors.
--
-- A span is a whole number of microseconds and a part of one, counted in 1/unit. An entry of the list:
--   [1] the instant of its charges, [2] 1 if all of them are holds, 2 if all of them are chunks on lease or holds, else 0,
--   [3] [4] what they occupy,
--   [5] [6] added and [7] [8] floor: the final charges that followed, tat -> max(tat + added, floor)
-- Entries that nobody has looked at stay the bytes they were read as.

-- Of reservations, as many again of holds, and as many of chunks on lease.
local MAX_OPEN_CHARGES = 64
-- From so many holds on, one is closed as soon as its request has passed, and not left to expire.
local MANY_HOLDS = 16
-- Whether a charge can be refunded; 0: no.
local BRIEFLY, UNTIL_CLOSED, ON_LEASE = 1, 2, 3
local BRIEF = 10000000
local ENTRY, ENTRY_BYTES = '<dddddddd', 64
-- The value: these bytes; tat, its part, unit, the arrival time before the first entry, its part, what `note_lowered`
-- notes; the entries, if there are any.
local OPEN_MAGIC, OPEN_HEAD, OPEN_HEAD_BYTES = 'TGB3', '<dddddddd', 68
-- The same of the version before: without what `note_lowered` notes.
local OLDER_MAGIC, OLDER_HEAD, OLDER_HEAD_BYTES = 'TGB2', '<ddddd', 44
-- How long a lowering is remembered. A charge that is older is undone without knowing of it.
local LOWERED_KEPT = 60000000

local function add_spans(a, a_part, b, b_part, unit)
  local sum, part = a + b, a_part
  if part >= unit - b_part then
    sum, part = sum + 1, part - (unit - b_part)
  else
    part = part + b_part
  end
  if sum > MOST then return MOST, 0 end
  return sum, part
end

-- The difference, or nothing where it would be negative.
local function subtract_span(a, a_part, b, b_part, unit)
  if a < b or (a == b and a_part <= b_part) then return 0, 0 end
  if a_part >= b_part then return a - b, a_part - b_part end
  return a - b - 1, a_part + (unit - b_part)
end

local function later_span(a, a_part, b, b_part)
  if a > b or (a == b and a_part >= b_part) then return a, a_part end
  return b, b_part
end

local function sooner_span(a, a_part, b, b_part)
  if a < b or (a == b and a_part <= b_part) then return a, a_part end
  return b, b_part
end

local function entry_at_place(state, index)
  local entry = state.entries[index]
  if type(entry) == 'string' then
    entry = {struct.unpack(ENTRY, entry)}
    state.entries[index] = entry
  end
  return entry
end

-- Works out state[3], the instant of the last entry. If the clock was set back behind a final charge that followed it, the
-- instant of that: a further charge is made after it.
local function last_instant(state)
  local last = entry_at_place(state, #state.entries)
  state[3] = last and last[1] or 0
  if last and last[7] > now and last[7] < MOST then
    local latest, part = subtract_span(last[7], last[8], last[5], last[6], state[4])
    if part > 0 then latest = latest + 1 end
    if latest > now and latest > state[3] then state[3] = latest end
  end
end

-- Splits a value into a state's list; nil: it is not one of ours.
local function read_open(value)
  local magic, is_older = string.sub(value, 1, #OPEN_MAGIC), false
  if magic == OLDER_MAGIC then is_older = true elseif magic ~= OPEN_MAGIC then return nil end
  local head_bytes = is_older and OLDER_HEAD_BYTES or OPEN_HEAD_BYTES
  local bytes = #value - head_bytes
  if bytes < 0 or bytes % ENTRY_BYTES ~= 0 or bytes > 3 * MAX_OPEN_CHARGES * ENTRY_BYTES then
    return nil
  end
  local head = {struct.unpack(is_older and OLDER_HEAD or OPEN_HEAD, value, #OPEN_MAGIC + 1)}
  if is_older then head[6], head[7], head[8] = 0, 0, 0 end
  local entries = {}
  for at = head_bytes + 1, #value, ENTRY_BYTES do
    entries[#entries + 1] = string.sub(value, at, at + ENTRY_BYTES - 1)
  end
  return head, entries
end

local function is_lowered(state)
  return state.lowered_at ~= nil and now < state.lowered_at + LOWERED_KEPT
end

-- Notes that final charges before the first entry were lowered by so much: of charges made at `from` or later. What was
-- charged from then until now ends sooner than it did, by at most that.
local function note_lowered(state, from, span, span_part)
  if span == 0 and span_part == 0 then return end
  local amount = span_part > 0 and span + 1 or span
  if is_lowered(state) then
    amount, from = math.min(state.lowered + amount, MOST), math.min(state.lowered_from, from)
  end
  state.lowered, state.lowered_from = amount, from
  state.lowered_at = math.max(now, state.lowered_at or 0)
end

local function write_open(state)
  local parts = {OPEN_MAGIC,
    struct.pack(OPEN_HEAD, state[1], state[2], state[4], state.base or 0, state.base_part or 0,
      state.lowered_from or 0, state.lowered_at or 0, state.lowered or 0)}
  for i = 1, state.entries and #state.entries or 0 do
    local entry = state.entries[i]
    if type(entry) ~= 'string' then
      entry = struct.pack(ENTRY, entry[1], entry[2], entry[3], entry[4], entry[5], entry[6],
        entry[7], entry[8])
    end
    parts[#parts + 1] = entry
  end
  return table.concat(parts)
end

-- Removes an entry whose charge is refunded or final; the final charges behind it stay.
local function remove_entry(state, index)
  local unit, entry = state[4], entry_at_place(state, index)
  table.remove(state.entries, index)
  if index > 1 then
    local before = entry_at_place(state, index - 1)
    before[5], before[6] = add_spans(before[5], before[6], entry[5], entry[6], unit)
    local floor, floor_part = add_spans(before[7], before[8], entry[5], entry[6], unit)
    before[7], before[8] = later_span(floor, floor_part, entry[7], entry[8])
  else
    local base, base_part = add_spans(state.base, state.base_part, entry[5], entry[6], unit)
    state.base, state.base_part = later_span(base, base_part, entry[7], entry[8])
  end
end

-- Makes so much of an entry's charge final: it stays charged at the same instant, in front of what followed.
local function close_part(state, entry, span, span_part)
  local unit = state[4]
  span, span_part = sooner_span(span, span_part, entry[3], entry[4])
  entry[3], entry[4] = subtract_span(entry[3], entry[4], span, span_part, unit)
  entry[5], entry[6] = add_spans(entry[5], entry[6], span, span_part, unit)
  local floor, floor_part = add_spans(entry[1], 0, entry[5], entry[6], unit)
  entry[7], entry[8] = later_span(entry[7], entry[8], floor, floor_part)
end

local function finalize(state, index)
  local entry = entry_at_place(state, index)
  close_part(state, entry, entry[3], entry[4])
  remove_entry(state, index)
end

local HOLD, LEASED = 1, 2

-- Whether an entry is a hold that nobody can want back any more.
local function is_over(entry, at)
  return entry[2] == HOLD and entry[1] + BRIEF <= at
end

-- How many entries of one sort there are, and the one that becomes final if there are too many: the oldest, but never the
-- newest of all.
local function count_of(state, sort)
  local count, oldest = 0, nil
  for i = 1, #state.entries do
    if entry_at_place(state, i)[2] == sort then
      count = count + 1
      if i < #state.entries then oldest = oldest or i end
    end
  end
  return count, oldest
end

local SORT_OF = {[BRIEFLY] = HOLD, [UNTIL_CLOSED] = 0, [ON_LEASE] = LEASED}

-- The sort of an entry after another charge of its instant.
local function joined_sort(sort, refundable)
  if refundable == UNTIL_CLOSED then return 0 end
  return sort == HOLD and SORT_OF[refundable] or sort
end

-- 2 if another refundable charge makes one final; 1 if there are so many that a hold is closed as soon as it is kept.
local function crowding(state, refundable)
  local from = refundable == BRIEFLY and MANY_HOLDS or MAX_OPEN_CHARGES
  if not state.entries or #state.entries < from then return 0 end
  local at = math.max(now, state[3])
  local is_empty = state[1] < at or (state[1] == at and state[2] == 0)
  if is_empty then return 0 end
  local last = entry_at_place(state, #state.entries)
  local joins = last[1] == at
  local sort = joins and joined_sort(last[2], refundable) or SORT_OF[refundable]
  local count, oldest = count_of(state, sort)
  if count < from then return 0 end
  local has_place = count < MAX_OPEN_CHARGES or (joins and sort == last[2])
    or is_over(entry_at_place(state, oldest), at)
  return has_place and 1 or 2
end

-- Makes entries of one sort final until they are within their bound.
local function trim(state, sort)
  while #state.entries > MAX_OPEN_CHARGES do
    local count, place = count_of(state, sort)
    if count <= MAX_OPEN_CHARGES or not place then return end
    finalize(state, place)
  end
end

-- Works out the arrival time anew, and drops entries that make no difference to it.
local function replay(state)
  local unit, spent = state[4], 0
  local tat, part = state.base, state.base_part
  for i = 1, #state.entries do
    local entry = entry_at_place(state, i)
    if tat < entry[1] or (tat == entry[1] and part == 0) then
      state.base, state.base_part, spent = tat, part, i - 1
      if tat < entry[1] then tat, part = entry[1], 0 end
    end
    tat, part = add_spans(tat, part, entry[3], entry[4], unit)
    tat, part = add_spans(tat, part, entry[5], entry[6], unit)
    if tat < entry[7] or (tat == entry[7] and part <= entry[8]) then
      tat, part = entry[7], entry[8]
      state.base, state.base_part, spent = tat, part, i
    end
  end
  for _ = 1, spent do table.remove(state.entries, 1) end
  state[1], state[2] = tat, part
  last_instant(state)
end

-- Adds a final charge behind the last entry.
local function append_final(state, at, span, span_part)
  local count, unit = #state.entries, state[4]
  if count == 0 then
    state.base, state.base_part = state[1], state[2]
  else
    local last = entry_at_place(state, count)
    last[5], last[6] = add_spans(last[5], last[6], span, span_part, unit)
    local floor, floor_part = later_span(last[7], last[8], at, 0)
    last[7], last[8] = add_spans(floor, floor_part, span, span_part, unit)
    last_instant(state)
  end
end

local function charge_open(state, span, span_part, refundable)
  local unit, at = state[4], now
  if not state.entries then
    state.entries, state.base, state.base_part = {}, state[1], state[2]
  end
  -- A clock that was set back does not reorder the list.
  if state[3] > at then at = state[3] end
  if state[1] < at or (state[1] == at and state[2] == 0) then
    -- Nothing of what was charged before is left.
    state.entries, state.base, state.base_part = {}, 0, 0
    state[1], state[2], state[3] = at, 0, 0
  end
  state[1], state[2] = add_spans(state[1], state[2], span, span_part, unit)
  local count = #state.entries
  if refundable == 0 then
    append_final(state, at, span, span_part)
  elseif count > 0 and entry_at_place(state, count)[1] == at then
    local last = entry_at_place(state, count)
    last[3], last[4] = add_spans(last[3], last[4], span, span_part, unit)
    local before = last[2]
    last[2] = joined_sort(before, refundable)
    -- It has become one of the others, of which there may be enough.
    if last[2] ~= before then trim(state, last[2]) end
  else
    while state.entries[1] and is_over(entry_at_place(state, 1), at) do finalize(state, 1) end
    state.entries[#state.entries + 1] = {at, SORT_OF[refundable], span, span_part, 0, 0, 0, 0}
    state[3] = at
    trim(state, SORT_OF[refundable])
  end
end

local function find_entry(state, at)
  for i = #state.entries, 1, -1 do
    if entry_at_place(state, i)[1] == at then return i end
  end
  return nil
end

local function refund_open(state, at, span, span_part)
  -- An arrival time at the end of time no longer says what it is the sum of.
  local index = state[1] < MOST and find_entry(state, at)
  if not index then return end
  local entry = entry_at_place(state, index)
  entry[3], entry[4] = subtract_span(entry[3], entry[4], span, span_part, state[4])
  if entry[3] == 0 and entry[4] == 0 then remove_entry(state, index) end
  replay(state)
end

local function close_open(state, at, span, span_part)
  local index = find_entry(state, at)
  if not index then return end
  local entry = entry_at_place(state, index)
  close_part(state, entry, span, span_part)
  if entry[3] == 0 and entry[4] == 0 then remove_entry(state, index) end
  last_instant(state)
end

-- Whether final charges of at least this span followed the last entry.
local function is_after_entries(state, span, span_part)
  local count = #state.entries
  if count == 0 then return true end
  local last = entry_at_place(state, count)
  return last[5] > span or (last[5] == span and last[6] >= span_part)
end

-- Undoes so much of what was charged last and is nobody's: final charges first, then holds, down to an empty bucket. What
-- others have reserved or have on lease stays.
local function refund_latest(state, span, span_part)
  local unit, count = state[4], #state.entries
  local ahead, ahead_part = subtract_span(state[1], state[2], now, 0, unit)
  local rest, rest_part = sooner_span(span, span_part, ahead, ahead_part)
  local function take(from, from_part)
    local part, part_part = sooner_span(rest, rest_part, from, from_part)
    rest, rest_part = subtract_span(rest, rest_part, part, part_part, unit)
    return part, part_part
  end
  for i = count, 1, -1 do
    local entry = entry_at_place(state, i)
    local part, part_part = take(entry[5], entry[6])
    entry[5], entry[6] = subtract_span(entry[5], entry[6], part, part_part, unit)
    entry[7], entry[8] = subtract_span(entry[7], entry[8], part, part_part, unit)
  end
  local from = count > 0 and entry_at_place(state, 1)[1] or now
  local part, part_part = take(subtract_span(state.base, state.base_part, from, 0, unit))
  state.base, state.base_part = subtract_span(state.base, state.base_part, part, part_part, unit)
  note_lowered(state, 0, part, part_part)
  for i = count, 1, -1 do
    local entry = entry_at_place(state, i)
    if entry[2] == HOLD then
      part, part_part = take(entry[3], entry[4])
      entry[3], entry[4] = subtract_span(entry[3], entry[4], part, part_part, unit)
      if entry[3] == 0 and entry[4] == 0 then remove_entry(state, i) end
    end
  end
  replay(state)
end

-- A part that another quota has left behind is rounded up. The sum may grow by that, so a bucket that is empty is emptied
-- first: it must not differ from one whose key has expired.
local function adopt_open(state, unit)
  local function up(value, part) return part > 0 and value + 1 or value, 0 end
  state[4] = unit
  if state[1] < now or (state[1] == now and state[2] == 0) then
    state.entries, state.base, state.base_part = {}, state[1], state[2]
  end
  state.base, state.base_part = up(state.base, state.base_part)
  for i = 1, #state.entries do
    local entry = entry_at_place(state, i)
    for field = 3, 7, 2 do
      entry[field], entry[field + 1] = up(entry[field], entry[field + 1])
    end
  end
  replay(state)
end
