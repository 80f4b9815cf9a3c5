-- Makes counters as new.
--
-- KEYS[2..]   the counters
-- result      nothing

redis.call('DEL', unpack(KEYS, 2))
return finish(true)
