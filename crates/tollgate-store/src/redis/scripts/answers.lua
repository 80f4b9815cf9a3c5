-- The answer that nodes share under a request's id.
--
-- KEYS[2]     the answer: 32 digits that identify the request's content, then 'P' and the owner of the
--             claim while it is being answered, or 'A' and the answer
-- ARGV[1]     [4] 1 claim, 2 publish, 3 forget; [5] the content; [6] milliseconds to keep it;
--             [7] the answer to publish; [8] the owner
-- result      for a claim: 0 it is yours, 1 another node is at it, 2 the id was used for other content,
--             3 answered, and the answer

local key, what, content = KEYS[2], args[4], args[5]
local known = redis.call('GET', key)
local same = known and string.sub(known, 1, 32) == content
local pending = known and string.sub(known, 33, 33) == 'P'
-- Its owner repeats a claim whose answer was lost.
local owned = same and pending and string.sub(known, 34) == args[8]
out[3] = 0
if what == 1 then
  if not known or owned then
    redis.call('SET', key, content .. 'P' .. args[8], 'PX', args[6])
    return finish(true)
  end
  if not same then
    out[3] = 2
  elseif pending then
    out[3] = 1
  else
    out[3], out[4] = 3, string.sub(known, 34)
  end
  return finish(false)
end
if what == 2 then
  if not known or (same and pending) then
    redis.call('SET', key, content .. 'A' .. args[7], 'PX', args[6])
  end
elseif owned then
  redis.call('DEL', key)
end
return finish(false)
