-- A write without effect, of a key that never exists. It is refused by a Redis that refuses to write.
return redis.call('PEXPIRE', key('rate', ''), 1)
