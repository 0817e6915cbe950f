#!lua flags=allow-oom
-- owner, weight: the share of computing time, relative to others
charge(ARGV[1])
redis.call('HSET', key('share', ARGV[1]), 'weight', ARGV[2])
redis.call('SADD', OWNERS, ARGV[1])
