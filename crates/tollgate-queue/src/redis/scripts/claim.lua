-- token, most, lease, max age, max attempts, most burials, why expired, why abandoned
-- → when the next lane is due (-1: none waits), and id, lane, attempts, request of each claim
local token, most, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local max_age, max_attempts = tonumber(ARGV[4]), tonumber(ARGV[5])
local at = clock()
local answer = {-1}

local function claim_head(lane)
  for _ = 1, tonumber(ARGV[6]) do
    local head = redis.call('XRANGE', lane_key(lane), '-', '+', 'COUNT', 1)[1]
    if not head then break end
    local place, id = head[1], head[2][2]
    local entry = redis.call('HMGET', entry_key(id), 'attempts', 'request')
    local came = redis.call('ZSCORE', waiting_key, id)
    if not entry[2] or not came then
      -- An entry that was evicted or deleted by hand.
      redis.call('XDEL', lane_key(lane), place)
      redis.call('ZREM', waiting_key, id)
    elseif tonumber(came) < at - max_age then
      bury(id, lane, place, ARGV[7], at)
    elseif tonumber(entry[1]) >= max_attempts then
      bury(id, lane, place, ARGV[8], at)
    else
      local attempts = redis.call('HINCRBY', entry_key(id), 'attempts', 1)
      redis.call('HSET', entry_key(id), 'claim', token)
      redis.call('ZADD', due_key, at + lease, lane)
      answer[#answer + 1] = {id, lane, attempts, entry[2]}
      return
    end
  end
  lane_due(lane, at)
end

for _, lane in ipairs(redis.call('ZRANGEBYSCORE', due_key, '-inf', at, 'LIMIT', 0, most)) do
  claim_head(lane)
end
local soonest = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
if soonest[2] then answer[1] = math.max(0, tonumber(soonest[2]) - at) end
return answer
