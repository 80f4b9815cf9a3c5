-- max age, why expired, how long and how many answers are kept, the same of dead letters, most of each
-- → how many expired, how many were removed, whether there is more to do
local batch = tonumber(ARGV[7])
local at = clock()
local expired, removed, is_partial = 0, 0, 0

local old = redis.call('ZRANGEBYSCORE', waiting_key, '-inf', '(' .. (at - tonumber(ARGV[1])), 'LIMIT', 0, batch)
for _, id in ipairs(old) do
  local found = redis.call('HMGET', entry_key(id), 'lane', 'place')
  local lane = found[1]
  if not lane then
    redis.call('ZREM', waiting_key, id)
  elseif not is_held(id, lane, at) then
    local due_at = redis.call('ZSCORE', due_key, lane) or at
    bury(id, lane, found[2], ARGV[2], at)
    lane_due(lane, due_at)
    expired = expired + 1
  end
end
if expired == batch then is_partial = 1 end

local function remove(shelf, ids)
  for _, id in ipairs(ids) do
    remove_entry(shelf, id)
  end
  removed = removed + #ids
  if #ids == batch then is_partial = 1 end
end

local function tidy(shelf, keep, most)
  local excess = math.min(batch, redis.call('ZCARD', shelf) - most)
  if excess > 0 then remove(shelf, redis.call('ZRANGE', shelf, 0, excess - 1)) end
  remove(shelf, redis.call('ZRANGEBYSCORE', shelf, '-inf', '(' .. (at - keep), 'LIMIT', 0, batch))
end
tidy(done_key, tonumber(ARGV[3]), tonumber(ARGV[4]))
tidy(dead_key, tonumber(ARGV[5]), tonumber(ARGV[6]))
-- Dead letters of versions that did not count them, once.
if redis.call('ZCARD', dead_key) > 0 and redis.call('HSETNX', bytes_key, 'dead_counted', 1) == 1 then
  for _, id in ipairs(redis.call('ZRANGE', dead_key, 0, 9999)) do count_dead(id) end
end
-- Entries that were evicted or deleted by hand took their figures along: without entries there are no bytes.
if redis.call('ZCARD', waiting_key) == 0 and redis.call('ZCARD', dead_key) == 0 then redis.call('DEL', bytes_key) end
if redis.call('ZCARD', done_key) == 0 then redis.call('DEL', result_bytes_key) end
return {expired, removed, is_partial}
