-- Undoes charges by their receipts.
--
-- KEYS[2..]   the counters
-- ARGV[1]     [4..] per counter: kind and the receipt:
--             bucket: nominal end, its part, span of the cost, its part, unit; window: end, cost;
--             sliding: end, cost, length; log: instant, cost, length; slots: name
-- result      the number of values that are not ours

local return_to = give_back()
local values = redis.call('MGET', unpack(KEYS, 2))
local at, strangers = 4, 0
for k = 1, #KEYS - 1 do
  local kind = args[at]
  if return_to[kind](at + 1, KEYS[k + 1], values[k]) == false then strangers = strangers + 1 end
  at = at + 1 + RECEIPT_WIDTH[kind]
end
put(strangers)
write_all()
return finish(true)
