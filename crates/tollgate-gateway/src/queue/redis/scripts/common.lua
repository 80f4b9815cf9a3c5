-- What the scripts share. KEYS[1] is what all keys of the queue start with; it holds the hash tag that puts
-- them into one slot. It is no key itself, and must never exist (link.rs says why).
--   e:ID     a hash: lane, place, state (waiting, done, dead), enqueued, attempts, claim, label, error,
--            request, response, finished
--   l:LANE   a stream: the ids of a lane's waiting entries, in order
--   due      lanes, by when their heads may be claimed: while a head is claimed, when its lease ends
--   waiting  ids, by when they came;  done, dead: ids, by when they were finished
local prefix = KEYS[1]
local due_key, waiting_key = prefix .. 'due', prefix .. 'waiting'
local done_key, dead_key = prefix .. 'done', prefix .. 'dead'

-- How many bytes requests take, dead letters included (l:LANE, t:TENANT, all), and answers (a number). Entries of
-- versions that did not count have no figure, and count as nothing.
local bytes_key, result_bytes_key = prefix .. 'bytes', prefix .. 'result_bytes'

local function entry_key(id) return prefix .. 'e:' .. id end
local function lane_key(lane) return prefix .. 'l:' .. lane end

-- Says when a lane is due, or that nothing of it waits any more.
local function lane_due(lane, at)
  if redis.call('XLEN', lane_key(lane)) == 0 then
    redis.call('DEL', lane_key(lane))
    redis.call('ZREM', due_key, lane)
  else
    redis.call('ZADD', due_key, at, lane)
  end
end

-- Takes an entry out of its lane, on to a shelf. The lane is to be looked after by the caller.
local function finish(id, lane, place, shelf, at)
  redis.call('XDEL', lane_key(lane), place)
  redis.call('ZREM', waiting_key, id)
  redis.call('ZADD', prefix .. shelf, at, id)
  redis.call('HSET', entry_key(id), 'state', shelf, 'finished', at)
  redis.call('HDEL', entry_key(id), 'claim')
end

-- Makes an entry a dead letter.
local function bury(id, lane, place, why, at)
  finish(id, lane, place, 'dead', at)
  redis.call('HSET', entry_key(id), 'error', why)
end

-- Lane and place of a claimed entry, unless the claim is lost.
local function claimed(id, token)
  local found = redis.call('HMGET', entry_key(id), 'claim', 'lane', 'place')
  if found[1] ~= token then return nil end
  return found[2], found[3]
end

-- Whether a waiting entry is under way: claimed, and the lease has not ended.
local function is_held(id, lane, at)
  if redis.call('HEXISTS', entry_key(id), 'claim') == 0 then return false end
  local due = redis.call('ZSCORE', due_key, lane)
  return due and tonumber(due) > at
end

-- Puts an entry at the end of its lane. There must be room.
local function enqueue(id, lane, at, due_at)
  local place = redis.call('XADD', lane_key(lane), '*', 'id', id)
  redis.call('ZADD', waiting_key, at, id)
  redis.call('ZADD', due_key, 'NX', due_at, lane)
  return place
end

-- Counts so many bytes more, or less, for a lane and its tenant.
local function count_bytes(lane, tenant, bytes)
  for _, field in ipairs({'l:' .. lane, 't:' .. tenant, 'all'}) do
    if redis.call('HINCRBY', bytes_key, field, bytes) <= 0 then redis.call('HDEL', bytes_key, field) end
  end
end

-- Counts the bytes of an entry no longer: its request is about to go, and its answer.
local function discount(id)
  local entry = redis.call('HMGET', entry_key(id), 'lane', 'tenant', 'request_bytes', 'result_bytes')
  if entry[3] then
    count_bytes(entry[1], entry[2], -tonumber(entry[3]))
    redis.call('HDEL', entry_key(id), 'request_bytes')
  end
  if entry[4] then
    if redis.call('DECRBY', result_bytes_key, entry[4]) <= 0 then redis.call('DEL', result_bytes_key) end
    redis.call('HDEL', entry_key(id), 'result_bytes')
  end
end

-- Whether there is room for one more: what to answer if not. Bounds of bytes: of a lane, a tenant, all.
local function no_room(lane, max_depth, max_lane_depth, tenant, bytes, max_bytes)
  local depth = redis.call('ZCARD', waiting_key)
  if depth >= max_depth then return {'full', depth} end
  depth = redis.call('XLEN', lane_key(lane))
  if depth >= max_lane_depth then return {'lane_full', depth} end
  if bytes > 0 then
    local kept = redis.call('HMGET', bytes_key, 'l:' .. lane, 't:' .. tenant, 'all')
    for bound = 1, 3 do
      local have = tonumber(kept[bound] or 0)
      if have + bytes > tonumber(max_bytes[bound]) then return {'bytes_' .. bound, have} end
    end
  end
  return nil
end
