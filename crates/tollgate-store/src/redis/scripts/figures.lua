-- Stores figures of a node, each in a field of its own, and notes that the node was seen now.
--
-- KEYS[1]     the nodes with figures: a sorted set, by when each was last seen, in ms
-- KEYS[2]     the figures of this node: field -> figures
-- ARGV        the node's name, for how many ms figures are kept, how many nodes may have some, after how
--             many ms a node counts as gone, then field, figures, field, figures…
-- result      1; 0 if there are nodes enough

local nodes, name, length = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now - length)
if not redis.call('ZSCORE', nodes, name) and redis.call('ZCARD', nodes) >= tonumber(ARGV[3]) then
  -- The one that was not seen for longest makes room, unless it is alive.
  local oldest = redis.call('ZRANGE', nodes, 0, 0, 'WITHSCORES')
  if now - tonumber(oldest[2]) < tonumber(ARGV[4]) then
    return 0
  end
  redis.call('ZREM', nodes, oldest[1])
  redis.call('DEL', nodes .. ':' .. oldest[1])
end
redis.call('ZADD', nodes, now, name)
redis.call('PEXPIRE', nodes, length)
for i = 5, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[2], length)
return 1
