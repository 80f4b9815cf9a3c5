-- id, token, response, its counted bytes, most bytes of answers, most removals → whether the claim held
local id = ARGV[1]
local lane, place = claimed(id, ARGV[2])
if not lane then return 0 end
local at = clock()
finish(id, lane, place, 'done', at)
discount(id)
redis.call('HSET', entry_key(id), 'response', ARGV[3], 'result_bytes', ARGV[4])
redis.call('HDEL', entry_key(id), 'request', 'error')
local kept = redis.call('INCRBY', result_bytes_key, ARGV[4])
-- The oldest answers make room.
for _ = 1, tonumber(ARGV[6]) do
  if kept <= tonumber(ARGV[5]) then break end
  local oldest = redis.call('ZRANGE', done_key, 0, 0)[1]
  if not oldest then break end
  remove_entry(done_key, oldest)
  kept = tonumber(redis.call('GET', result_bytes_key) or 0)
end
lane_due(lane, at)
return 1
