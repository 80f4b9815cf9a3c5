-- Takes quota of one counter ahead, and returns what is left of an earlier chunk.
--
-- KEYS[2]     the counter
-- KEYS[3]     the ledger: node -> what it has on lease, and until when
-- KEYS[4]     the counter's mark, see reset.lua
-- KEYS[5]     remembers that the return was made, as in settle.lua; only where something is returned
-- ARGV[1]     [4] the node, [5] what it goes on holding, [6] what it spends at once, [7] the most that
--             may be on lease over all nodes, [8] how long the lease lasts, [9] for how many milliseconds
--             the return is remembered, [10] the kind of receipt that is given back (0: none) and the receipt; how many open charges of a bucket become final, and each of
--             them: instant, span of the cost, its part, unit; then the kind of the counter, and per amount that would
--             do, largest first: the amount, and the parameters of the kind
-- result      0, or 2 if a value is not ours, or 3 if no window fits; what was charged; what others have
--             on lease; when the lease ends; 1 if the amount fits; the state before

local counter, ledger, node = KEYS[2], KEYS[3], args[4]
local held, least, pool, length = args[5], args[6], args[7], args[8]

local value = redis.pcall('GET', counter)
if type(value) == 'table' then value = nil end

local at, returns = 11, false
if args[10] > 0 then
  -- A node that had no answer may have returned it already in another call.
  returns = redis.call('SET', KEYS[5], '1', 'NX', 'PX', string.format('%.0f', args[9])) ~= false
  local is_reset = is_void(args[10], at, redis.call('GET', KEYS[4]))
  if returns and not is_reset and give_back()[args[10]](at, counter, value) == false then
    out[3] = 2
    return finish(false)
  end
  at = at + RECEIPT_WIDTH[args[10]]
end
local closed = args[at]
at = at + 1
for _ = 1, closed do
  local is_reset = is_void(OPEN, at, redis.call('GET', KEYS[4]))
  if not is_reset and not change_open(at, counter, value, close_open) then
    out[3] = 2
    return finish(false)
  end
  at = at + RECEIPT_WIDTH[OPEN]
end

local others, latest = 0, 0
local records = redis.pcall('HGETALL', ledger)
if records.err then
  out[3] = 2
  return finish(false)
end
local expired = {}
for i = 1, #records, 2 do
  local amount, expires = struct.unpack('<dd', records[i + 1])
  if expires <= now then
    expired[#expired + 1] = records[i]
  elseif records[i] ~= node then
    others, latest = others + amount, math.max(latest, expires)
  end
end

local kind = args[at]
at = at + 1
if kind <= SLIDING and not value and not states[counter] and redis.call('EXISTS', counter) == 1 then
  foreign[counter] = true
end
put(0) put(0) put(others) put(0)
local granted, tries, base = 0, 0, out_n
while args[at] do
  local amount, p = args[at], at + 1
  at = p + WIDTH[kind]
  -- What is spent at once is not on lease, and needs no room in the pool.
  if amount <= least or others + held + amount - least <= pool then
    tries = tries + 1
    out_n = base
    local admits = examine[kind](p, counter, value, -tries, false)
    if admits == nil or admits == 'outside' then
      for i = 4, #out do out[i] = nil end
      out[3] = admits == nil and 2 or 3
      -- Nothing was written.
      if returns then redis.call('DEL', KEYS[5]) end
      return finish(false)
    end
    if admits then
      charge[kind](p, counter)
      granted = amount
      break
    end
  end
end

local record = held + math.max(granted - least, 0)
out[4] = granted
write_all()
if record > 0 then
  local expires = now + length
  out[6] = expires
  redis.call('HSET', ledger, node, struct.pack('<dd', record, expires))
  latest = math.max(latest, expires)
else
  redis.call('HDEL', ledger, node)
end
if #expired > 0 then redis.call('HDEL', ledger, unpack(expired)) end
if latest > 0 then redis.call('PEXPIRE', ledger, lifetime(latest)) end
return finish(true)
