#!lua flags=allow-oom
-- owner, since when and why as JSON: no job of the owner starts, and running ones are handed back; '' ends the pause
local owner, held = unpack(ARGV)
if held ~= '' then
  redis.call('HSET', key('share', owner), 'held', held)
  redis.call('SADD', OWNERS, owner)
elseif redis.call('HEXISTS', key('share', owner), 'held') == 1 then
  raise_to_floor(owner) -- of the others: a paused owner does not count
  redis.call('HDEL', key('share', owner), 'held')
end
