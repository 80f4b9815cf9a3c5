-- → waiting, lanes, age of the oldest (-1: none waits), done, dead
local oldest = redis.call('ZRANGE', waiting_key, 0, 0, 'WITHSCORES')[2]
local age = oldest and math.max(0, clock() - tonumber(oldest)) or -1
return {redis.call('ZCARD', waiting_key), redis.call('ZCARD', due_key), age,
  redis.call('ZCARD', done_key), redis.call('ZCARD', dead_key)}
