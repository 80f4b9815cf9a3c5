-- Makes counters as new.
--
-- KEYS[2..]   the counters
-- result      nothing

redis.call('UNLINK', unpack(KEYS, 2))
return finish(true)
