-- The record of a reservation.
--
-- KEYS[2]     the record: a msgpack array of its stage (1 open, 2 ending, 3 ended), its lifetime, the
--             instant at which it is over, how it is to end, and its content, or when ended its answer
-- ARGV[1]     [4] 1 keep, 2 end, 3 complete, 4 renew; [5] the content, how it is to end, or the answer;
--             [6] a lifetime, 0 for its own
-- result      the stage, 0 if there is none; when it is over; how it is to end; its content. Of one that is
--             completed, as it was before

local key, what, text, length = KEYS[2], args[4], args[5], args[6]

local function write(record)
  local millis = math.max(math.ceil((record[3] - now) / 1000), 1)
  redis.call('SET', key, cmsgpack.pack(record), 'PX', string.format('%.0f', millis))
end

local function tell(record)
  out[3], out[4], out[5], out[6] = record[1], record[3], record[4], record[5]
end

if what == 1 then
  local record = {1, length, now + length, '', text}
  write(record)
  tell(record)
  return finish(true)
end

local value = redis.call('GET', key)
local record = value and cmsgpack.unpack(value)
if not record or record[3] <= now then
  tell({0, 0, 0, '', ''})
  return finish(false)
end

local changed = false
if what == 2 and record[1] == 1 then
  record[1], record[3], record[4], changed = 2, now + length, text, true
elseif what == 4 and record[1] == 1 then
  if length == 0 then length = record[2] end
  record[3], changed = math.max(record[3], now + length), true
end
tell(record)
if what == 3 and record[1] == 2 then
  record[1], record[4], record[5], changed = 3, '', text, true
end
if changed then write(record) end
return finish(changed)
