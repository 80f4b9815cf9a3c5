-- Undoes charges by their receipts, or makes them final.
--
-- KEYS[2..]   the counters, and after them their marks (see reset.lua) in the same order
-- ARGV[1]     [4..] per counter: kind and the receipt, see receipts.lua
-- result      the number of values that are not ours

local return_to = give_back()
local values = redis.call('MGET', unpack(KEYS, 2))
local at, strangers, count = 4, 0, (#KEYS - 1) / 2
for k = 1, count do
  local kind = args[at]
  if not is_void(kind, at + 1, values[count + k])
    and return_to[kind](at + 1, KEYS[k + 1], values[k]) == false then
    strangers = strangers + 1
  end
  at = at + 1 + RECEIPT_WIDTH[kind]
end
put(strangers)
write_all()
return finish(true)
