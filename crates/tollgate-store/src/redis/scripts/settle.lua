-- Changes charges that were made before, once.
--
-- KEYS[2]     remembers that it was done
-- KEYS[3..]   the counters
-- ARGV[1]     [4] for how many milliseconds that is remembered; [5..] per counter: 0 nothing;
--             1 give back, kind and receipt as in give_back.lua; 2 charge above the limit if need be,
--             kind and parameters as in counters.lua
-- result      0 done, 1 was done before, 3 no window fits; and the number of values that are not ours

local KEEP, GIVE_BACK, OWE = 0, 1, 2

if redis.call('EXISTS', KEYS[2]) == 1 then
  put(1) put(0)
  return finish(false)
end

local function each(act)
  local at = 5
  for k = 3, #KEYS do
    local what, kind = args[at], args[at + 1]
    act(what, kind, at + 2, KEYS[k], k - 2)
    if what == KEEP then
      at = at + 1
    elseif what == GIVE_BACK then
      at = at + 2 + RECEIPT_WIDTH[kind]
    else
      at = at + 2 + WIDTH[kind]
    end
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

-- First of all, because it may find no memory; after it none is short of it.
redis.call('SET', KEYS[2], '1', 'PX', string.format('%.0f', args[4]))
local return_to = give_back()
each(function(what, kind, p, key, k)
  if what == GIVE_BACK and return_to[kind](p, key, values[k]) == false then
    strangers = strangers + 1
  end
end)
each(function(what, kind, p, key, k)
  if what == OWE and is_ours[k] then charge[kind](p, key) end
end)
write_all()
put(0) put(strangers)
return finish(true)
