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

-- How many bytes requests take, dead letters included (l:LANE, t:TENANT, all), how many of those are of dead letters
-- (dl:LANE, dt:TENANT, dall), and answers (a number). Entries of versions that did not count have no figure, and count
-- as nothing.
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

-- Adds to figures of bytes. Those that are 0 are removed.
local function add_bytes(fields, bytes)
  for _, field in ipairs(fields) do
    if redis.call('HINCRBY', bytes_key, field, bytes) <= 0 then redis.call('HDEL', bytes_key, field) end
  end
end

-- Counts the bytes of a dead letter as such.
local function count_dead(id)
  local entry = redis.call('HMGET', entry_key(id), 'lane', 'tenant', 'request_bytes', 'dead_bytes')
  if not entry[3] or entry[4] then return end
  redis.call('HSET', entry_key(id), 'dead_bytes', entry[3])
  add_bytes({'dl:' .. entry[1], 'dt:' .. entry[2], 'dall'}, tonumber(entry[3]))
end

-- Counts them no longer: the dead letter is about to go, or to be tried again.
local function discount_dead(id)
  local entry = redis.call('HMGET', entry_key(id), 'lane', 'tenant', 'dead_bytes')
  if not entry[3] then return end
  redis.call('HDEL', entry_key(id), 'dead_bytes')
  add_bytes({'dl:' .. entry[1], 'dt:' .. entry[2], 'dall'}, -tonumber(entry[3]))
end

-- Makes an entry a dead letter.
local function bury(id, lane, place, why, at)
  finish(id, lane, place, 'dead', at)
  count_dead(id)
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
  add_bytes({'l:' .. lane, 't:' .. tenant, 'all'}, bytes)
end

-- Counts the bytes of an entry no longer: its request is about to go, and its answer.
local function discount(id)
  discount_dead(id)
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

-- Removes an entry from its shelf.
local function remove_entry(shelf, id)
  discount(id)
  redis.call('ZREM', shelf, id)
  redis.call('DEL', entry_key(id))
end

-- Whether there is room for one more: what to answer if not. Bounds of bytes: of a lane, a tenant, all. Dead letters
-- make room.
local function no_room(lane, max_depth, max_lane_depth, tenant, bytes, max_bytes)
  local depth = redis.call('ZCARD', waiting_key)
  if depth >= max_depth then return {'full', depth} end
  depth = redis.call('XLEN', lane_key(lane))
  if depth >= max_lane_depth then return {'lane_full', depth} end
  if bytes > 0 then
    local kept = redis.call('HMGET', bytes_key, 'l:' .. lane, 't:' .. tenant, 'all', 'dl:' .. lane, 'dt:' .. tenant,
      'dall')
    for bound = 1, 3 do
      local have = tonumber(kept[bound] or 0) - tonumber(kept[bound + 3] or 0)
      if have + bytes > tonumber(max_bytes[bound]) then return {'bytes_' .. bound, have} end
    end
  end
  return nil
end

-- Removes the oldest dead letters until so many bytes more fit: those of the lane where its bound is too low, then those
-- of the tenant, then any. Returns how many were removed, and what to answer if that is not enough.
local function make_room(lane, tenant, bytes, max_bytes)
  local removed = 0
  local function excess(bound)
    local field = ({'l:' .. lane, 't:' .. tenant, 'all'})[bound]
    return tonumber(redis.call('HGET', bytes_key, field) or 0) + bytes - tonumber(max_bytes[bound])
  end
  for bound = 1, 3 do
    local first = 0
    while excess(bound) > 0 do
      local ids = redis.call('ZRANGE', dead_key, first, first + 99)
      if #ids == 0 then return removed, {'bytes_' .. bound, excess(bound) + tonumber(max_bytes[bound]) - bytes} end
      for _, id in ipairs(ids) do
        local owner = redis.call('HMGET', entry_key(id), 'lane', 'tenant')
        if excess(bound) > 0 and (bound == 3 or owner[bound] == ({lane, tenant})[bound]) then
          remove_entry(dead_key, id)
          removed = removed + 1
        else
          first = first + 1
        end
      end
    end
  end
  return removed, nil
end
