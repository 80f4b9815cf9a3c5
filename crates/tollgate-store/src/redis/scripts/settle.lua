-- Changes charges that were made before, once.
--
-- KEYS[2]     remembers that it was done
-- KEYS[3..]   the counters, and after them their marks (see reset.lua) in the same order
-- ARGV[1]     [4] for how many milliseconds that is remembered; [5..] per counter: 0 nothing;
--             1 give back, kind and receipt as in receipts.lua; 2 charge above the limit if need be,
--             kind and parameters as in counters.lua; and after each of these: 0, or 1 and an open charge of a
--             bucket that becomes final: instant, span of the cost, its part, unit
-- result      0 done, 1 was done before, 3 no window fits; the number of values that are not ours; and per counter,
--             now or before, what was given back: a cost, or of a bucket a span, and its part. Without these where a node
--             of the version before has done it

local KEEP, GIVE_BACK, OWE = 0, 1, 2

local done = redis.call('GET', KEYS[2])
if done then
  put(1) put(0)
  if done ~= '1' then
    for _, figure in ipairs(cmsgpack.unpack(done)) do put(figure) end
  end
  return finish(false)
end

local count = (#KEYS - 2) / 2

local function each(act)
  local at = 5
  for k = 3, count + 2 do
    local what, kind, p, closes = args[at], args[at + 1], at + 2, nil
    if what == KEEP then
      at = at + 1
    elseif what == GIVE_BACK then
      at = p + RECEIPT_WIDTH[kind]
    else
      at = p + WIDTH[kind]
    end
    if args[at] == 1 then closes = at + 1 end
    at = closes and closes + RECEIPT_WIDTH[OPEN] or at + 1
    act(what, kind, p, KEYS[k], k - 2, closes)
  end
end

local values = #KEYS > 2 and redis.call('MGET', unpack(KEYS, 3)) or {}

-- All is looked at before the first write.
local strangers, outside, is_ours = 0, false, {}
each(function(what, kind, p, key, k)
  if what ~= OWE then return end
  if not values[k] and kind <= SLIDING and redis.call('EXISTS', key) == 1 then foreign[key] = true end
  local admits = examine[kind](p, key, values[k], 1, true)
  if admits == nil then
    strangers = strangers + 1
  elseif admits == 'outside' then
    outside = true
  else
    is_ours[k] = true
  end
end)
for i = 3, out_n do out[i] = nil end
out_n = 2
if outside then
  put(3) put(0)
  return finish(false)
end

-- A value that is not ours cannot be given back to. Nothing is done then, so that the call can be repeated.
local function is_foreign(kind, key, value)
  if kind == LOG or kind == SLOTS then
    local sort = redis.call('TYPE', key).ok
    return sort ~= 'zset' and sort ~= 'none'
  end
  if not value then return false end
  if kind == BUCKET or kind == OPEN then return not read_bucket(key, value) end
  return not read_window(key, value, kind)
end
local refused = 0
each(function(what, kind, p, key, k, closes)
  local mark = values[count + k]
  if (closes and not is_void(OPEN, closes, mark) and is_foreign(OPEN, key, values[k]))
    or (what == GIVE_BACK and not is_void(kind, p, mark) and is_foreign(kind, key, values[k])) then
    refused = refused + 1
  end
end)
if refused > 0 then
  put(0) put(refused)
  return finish(false)
end

local returned = {}
for i = 1, 2 * count do returned[i] = 0 end

local function remember()
  redis.call('SET', KEYS[2], cmsgpack.pack(returned), 'PX', string.format('%.0f', args[4]))
end

-- First of all, because it may find no memory; after it none is short of it.
remember()
local return_to = give_back()
each(function(what, kind, p, key, k, closes)
  local mark = values[count + k]
  if closes and not is_void(OPEN, closes, mark)
    and not change_open(closes, key, values[k], close_open) then
    strangers = strangers + 1
  elseif what == GIVE_BACK and not is_void(kind, p, mark) then
    local is_own, amount, part = return_to[kind](p, key, values[k])
    if not is_own then strangers = strangers + 1 end
    returned[2 * k - 1], returned[2 * k] = amount or 0, part or 0
  end
end)
each(function(what, kind, p, key, k)
  if what == OWE and is_ours[k] then charge[kind](p, key) end
end)
write_all()
remember()
put(0) put(strangers)
for i = 1, 2 * count do put(returned[i]) end
return finish(true)
