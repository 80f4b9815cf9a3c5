-- id, token, response → whether the claim held
local id = ARGV[1]
local lane, place = claimed(id, ARGV[2])
if not lane then return 0 end
local at = clock()
finish(id, lane, place, 'done', at)
redis.call('HSET', entry_key(id), 'response', ARGV[3])
redis.call('HDEL', entry_key(id), 'request', 'error')
lane_due(lane, at)
return 1
