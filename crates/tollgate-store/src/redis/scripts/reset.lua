-- Resets counters. Charges that were made before give back nothing afterwards: a mark with the instant of the reset is kept
-- next to each counter for as long as the counter would have lived.
--
-- KEYS[2..]   the counters, and after them their marks in the same order
-- result      nothing

local count = (#KEYS - 1) / 2
for k = 2, count + 1 do
  local lives = redis.call('PTTL', KEYS[k])
  if lives > 0 then
    local mark = KEYS[k + count]
    local before = tonumber(redis.call('GET', mark)) or 0
    lives = math.max(lives, redis.call('PTTL', mark))
    redis.call('SET', mark, string.format('%.0f', math.max(now, before)), 'PX', string.format('%.0f', lives))
  end
end
redis.call('UNLINK', unpack(KEYS, 2, count + 1))
return finish(true)
