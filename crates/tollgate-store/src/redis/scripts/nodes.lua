-- Says that a node is alive, and counts those that are.
--
-- KEYS[2]     the nodes: name -> when it is no longer taken to be alive
-- ARGV[1]     [4] the node's name, [5] for how long it is alive; 0: it goes
-- result      how many are alive, and how many of them have a lesser name

local key, name, length = KEYS[2], args[4], args[5]
if length > 0 then
  redis.call('ZADD', key, now + length, name)
else
  redis.call('ZREM', key, name)
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
local alive = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
local rank = 0
for i = 1, #alive, 2 do
  if alive[i] < name then rank = rank + 1 end
end
if #alive > 0 then redis.call('PEXPIRE', key, lifetime(tonumber(alive[#alive]))) end
out[3], out[4] = #alive / 2, rank
return finish(true)
