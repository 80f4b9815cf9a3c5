-- Holds a slot for longer, or gives it back.
--
-- KEYS[2]     the counter
-- ARGV[1]     [4] the slot's name, [5] its new lifetime, or 0 to give it back
-- result      1 if it was held, 0 if not, 2 if the value is not ours

local key, name, length = KEYS[2], args[4], args[5]
local expires = redis.pcall('ZSCORE', key, name)
if type(expires) == 'table' and expires.err then
  out[3] = 2
  return finish(false)
end
if not expires or tonumber(expires) <= now then
  out[3] = 0
  return finish(false)
end
out[3] = 1
if length == 0 then
  redis.call('ZREM', key, name)
else
  redis.call('ZADD', key, math.max(tonumber(expires), now + length), name)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local latest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, lifetime(tonumber(latest)))
end
return finish(true)
