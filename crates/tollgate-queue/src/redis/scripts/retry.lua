-- id, most waiting, most of a lane → what became of it
local id = ARGV[1]
local found = redis.call('HMGET', entry_key(id), 'state', 'lane')
if not found[1] then return {'not_there', 0} end
if found[1] ~= 'dead' then return {'not_now', 0} end
local lane = found[2]
-- Its bytes are counted already.
local refused = no_room(lane, tonumber(ARGV[2]), tonumber(ARGV[3]), '', 0, {})
if refused then return refused end
local at = clock()
redis.call('ZREM', dead_key, id)
discount_dead(id)
local place = enqueue(id, lane, at, at)
redis.call('HSET', entry_key(id), 'state', 'waiting', 'place', place, 'enqueued', at, 'attempts', 0)
redis.call('HDEL', entry_key(id), 'finished')
return {'made', 0}
