-- Announces a node, and lists those that announced themselves lately.
--
-- KEYS[2]     the nodes: name -> when it is no longer taken to be alive
-- KEYS[3]     the nodes: name -> when it last announced that it has reported what it admitted without us
-- ARGV[1]     [4] the node's name, [5] for how long it is alive; 0: it leaves; [6] 1 if it has reported;
--             [7] how many nodes are listed at most
-- result      how many are alive, how many of them have a lesser name, 1 if the list is cut short; and per
--             node its name, 1 if it is alive, when it last announced that it has reported (0: not lately)

-- For how long a report is listed, in microseconds: longer than any node waits for it.
local REPORT_LISTED = 60000000

local key, reports, name, length, most = KEYS[2], KEYS[3], args[4], args[5], args[7]
if length > 0 then
  redis.call('ZADD', key, now + length, name)
else
  redis.call('ZREM', key, name)
end
if args[6] == 1 then
  redis.call('ZADD', reports, now, name)
  redis.call('PEXPIRE', reports, lifetime(now + REPORT_LISTED))
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
redis.call('ZREMRANGEBYSCORE', reports, '-inf', now - REPORT_LISTED)
local alive = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
local reported, cut_short = {}, 0
local listed = redis.call('ZREVRANGE', reports, 0, most - 1, 'WITHSCORES')
for i = 1, #listed, 2 do reported[listed[i]] = tonumber(listed[i + 1]) end
local rank, n = 0, 5
for i = 1, #alive, 2 do
  local node = alive[i]
  if node < name then rank = rank + 1 end
  if n < 5 + 3 * most then
    out[n + 1], out[n + 2], out[n + 3] = node, 1, reported[node] or 0
    reported[node], n = nil, n + 3
  else
    cut_short = 1
  end
end
for node, at in pairs(reported) do
  if n < 5 + 3 * most then
    out[n + 1], out[n + 2], out[n + 3] = node, 0, at
    n = n + 3
  else
    cut_short = 1
  end
end
if #alive > 0 then redis.call('PEXPIRE', key, lifetime(tonumber(alive[#alive]))) end
out[3], out[4], out[5] = #alive / 2, rank, cut_short
return finish(true)
