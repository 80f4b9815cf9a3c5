-- shelf, instant and id of the last entry of the page before, most → whether there is more, then
-- instant, id and what is known of each
local shelf, after, last, most = prefix .. ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = clock()
-- The first entry past the last one, which may have gone meanwhile. Those of one instant are in the order
-- of their ids.
local first = redis.call('ZCOUNT', shelf, '-inf', '(' .. after)
local past = redis.call('ZCOUNT', shelf, '-inf', after)
while first < past do
  local middle = math.floor((first + past) / 2)
  if redis.call('ZRANGE', shelf, middle, middle)[1] > last then past = middle else first = middle + 1 end
end
local found = redis.call('ZRANGE', shelf, first, first + most - 1, 'WITHSCORES')
local answer = {#found == most * 2 and 1 or 0}
for i = 1, #found, 2 do
  local fields = describe(found[i], at, false, 0)
  if fields then answer[#answer + 1] = {found[i + 1], found[i], fields} end
end
return answer
