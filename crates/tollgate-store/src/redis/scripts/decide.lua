-- Decides requests in order, each all or none.
--
-- KEYS[2..]   the counter of every charge, in order
-- ARGV[1]     [4..] per request: mode (0 charge, 1 peek, 2 owe, 3 hold), number of charges, and per
--             charge: kind, role (0 must, 1 any of, 2 watch, 3 alongside), parameters of the kind
-- result      per request: 0 not charged, 1 charged, 2 a value is not ours, 3 no window fits, here or in an earlier
--             request: they are sent again in order; after 0 and 1 per charge: 1 if it fits, else 0, and the counter's state before the request

local MUST, ANY_OF, ALONGSIDE = 0, 1, 3
local CHARGE, PEEK, OWE, HOLD = 0, 1, 2, 3

local values = #KEYS > 1 and redis.call('MGET', unpack(KEYS, 2)) or {}

-- A key that MGET finds nothing in may hold something of another type. One question settles it for all
-- of them, and mostly there is nothing.
local unknown, is_complete = {}, true
for i = 1, #values do
  if not values[i] then
    is_complete = false
    break
  end
end
if not is_complete then
  local at, k = 4, 0
  while args[at] do
    local charges = args[at + 1]
    at = at + 2
    for _ = 1, charges do
      k = k + 1
      if not values[k] and args[at] <= SLIDING then unknown[#unknown + 1] = KEYS[k + 1] end
      at = at + 2 + WIDTH[args[at]]
    end
  end
end
if #unknown > 0 and redis.call('EXISTS', unpack(unknown)) > 0 then
  for i = 1, #unknown do
    if redis.call('EXISTS', unknown[i]) == 1 then foreign[unknown[i]] = true end
  end
end

local at, k, request, changed, fits = 4, 0, 0, false, {}
local is_outside = false
while args[at] do
  local mode, charges = args[at], args[at + 1]
  at, request = at + 2, request + 1
  local first_at, first_k, place = at, k, out_n + 1
  local verdict, passes, grouped, found = is_outside and 3 or 0, true, false, false
  put(0)
  prunes = mode ~= PEEK
  for c = 1, charges do
    k = k + 1
    local kind, role = args[at], args[at + 1]
    if verdict == 0 then
      local insists = role == MUST or role == ALONGSIDE or mode == OWE
      local admits = examine[kind](at + 2, KEYS[k + 1], values[k], request, insists)
      if admits == nil then
        verdict = 2
      elseif admits == 'outside' then
        verdict, is_outside = 3, true
      elseif role == ANY_OF then
        grouped, found = true, found or admits
      elseif role == MUST and not admits then
        passes = false
      end
      fits[c] = admits
    end
    at = at + 2 + WIDTH[kind]
  end
  if verdict > 0 then
    for i = place + 1, out_n do out[i] = nil end
    out_n = place
  else
    if grouped and not found and mode ~= HOLD then passes = false end
    if mode == OWE or passes and mode ~= PEEK then
      verdict, changed = 1, true
      local p = first_at
      for c = 1, charges do
        local kind = args[p]
        if fits[c] or mode == OWE or args[p + 1] == ALONGSIDE then charge[kind](p + 2, KEYS[first_k + c + 1]) end
        p = p + 2 + WIDTH[kind]
      end
    end
  end
  out[place] = verdict
end

write_all()
return finish(changed)
