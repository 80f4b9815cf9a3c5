-- The slots that are held, the one that expires first before the others.
--
-- KEYS[2]     the counter
-- ARGV[1]     [4] how many at most
-- result      0, or 2 if the value is not ours; and per slot its name and when it expires

local found = redis.pcall('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', now), '+inf', 'WITHSCORES',
  'LIMIT', 0, args[4])
if found.err then
  out[3] = 2
  return finish(false)
end
out[3] = 0
for i = 1, #found, 2 do
  out[i + 3], out[i + 4] = found[i], tonumber(found[i + 1])
end
return finish(false)
