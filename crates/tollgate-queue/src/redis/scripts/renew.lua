-- id, token, lease → whether the claim holds
local lane = claimed(ARGV[1], ARGV[2])
if not lane then return 0 end
redis.call('ZADD', due_key, clock() + tonumber(ARGV[3]), lane)
return 1
