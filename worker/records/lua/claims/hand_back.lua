#!lua flags=allow-oom
-- id, fence: back to the queue, the attempt not counted
local id, fence = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
redis.call('HINCRBY', key('job', id), 'attempt', -1)
if field(id, 'cancel_requested') == '1' then
  finish(id, 'cancelled', '', '')
else
  release_worker(id)
  enqueue(id)
end
return 1
