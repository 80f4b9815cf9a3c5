-- id, token, wait, whether this was no attempt, why → whether the claim held
local id = ARGV[1]
local lane = claimed(id, ARGV[2])
if not lane then return 0 end
redis.call('HDEL', entry_key(id), 'claim')
if ARGV[4] == '1' then
  redis.call('HINCRBY', entry_key(id), 'attempts', -1)
else
  redis.call('HSET', entry_key(id), 'error', ARGV[5])
end
lane_due(lane, clock() + tonumber(ARGV[3]))
return 1
