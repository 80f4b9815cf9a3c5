-- id, lane, request, label, due in, most waiting, most of a lane, tenant, counted bytes, most bytes of a lane, of a
-- tenant and of all → what became of it, how many are before it, how many dead letters made room
local id, lane, request, label = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', entry_key(id)) == 1 then
  -- The answer to the first push was lost a moment ago: the entry is most likely still the last of its lane.
  return {'accepted', math.max(0, redis.call('XLEN', lane_key(lane)) - 1), 0}
end
local tenant, bytes = ARGV[8], tonumber(ARGV[9])
local max_bytes = {ARGV[10], ARGV[11], ARGV[12]}
local refused = no_room(lane, tonumber(ARGV[6]), tonumber(ARGV[7]), tenant, bytes, max_bytes)
if refused then return {refused[1], refused[2], 0} end
local removed
removed, refused = make_room(lane, tenant, bytes, max_bytes)
if refused then return {refused[1], refused[2], removed} end
local at = clock()
local before = redis.call('XLEN', lane_key(lane))
local place = enqueue(id, lane, at, at + tonumber(ARGV[5]))
redis.call('HSET', entry_key(id), 'lane', lane, 'place', place, 'state', 'waiting', 'enqueued', at,
  'attempts', 0, 'label', label, 'request', request, 'tenant', tenant, 'request_bytes', bytes)
count_bytes(lane, tenant, bytes)
return {'accepted', before, removed}
