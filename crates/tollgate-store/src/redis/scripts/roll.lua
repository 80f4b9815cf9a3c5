-- Stores the state of a node, and returns the states of the other nodes that have not expired.
--
-- KEYS[1]     the roll: name -> when its state expires, in ms, a space, and the state
-- ARGV        the node's name, its state, for how many ms it is valid, 1 to return the others, how many
--             nodes may be on the roll
-- result      name, state, name, state…

local key, name, length = KEYS[1], ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others = {}
local roll = redis.call('HGETALL', key)
local count = 0
for i = 1, #roll, 2 do
  local ends, word = string.match(roll[i + 1], '^(%d+) (.*)$')
  if ends == nil or tonumber(ends) <= now then
    redis.call('HDEL', key, roll[i])
  elseif roll[i] ~= name then
    count = count + 1
    if ARGV[4] == '1' then
      others[#others + 1], others[#others + 2] = roll[i], word
    end
  end
end
if count < tonumber(ARGV[5]) then
  redis.call('HSET', key, name, string.format('%d', now + length) .. ' ' .. ARGV[2])
  redis.call('PEXPIRE', key, length)
end
return others
