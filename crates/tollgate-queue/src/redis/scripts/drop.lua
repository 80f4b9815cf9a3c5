-- id → what became of it
local id = ARGV[1]
local found = redis.call('HMGET', entry_key(id), 'state', 'lane', 'place')
local state, lane = found[1], found[2]
if not state then return {'not_there', 0} end
if state == 'waiting' then
  local at = clock()
  if is_held(id, lane, at) then return {'not_now', 0} end
  local due_at = redis.call('ZSCORE', due_key, lane) or at
  redis.call('XDEL', lane_key(lane), found[3])
  lane_due(lane, due_at)
end
discount(id)
redis.call('ZREM', prefix .. state, id)
redis.call('DEL', entry_key(id))
return {'made', 0}
