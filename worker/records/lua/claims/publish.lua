-- id, fence, then iteration and payload in turn -> lost, held or cancel_requested. Iterations that readers have seen are skipped.
local id, fence = ARGV[1], ARGV[2]
if not holds_claim(id, fence) then return 'lost' end
local published, fresh = number(id, 'published'), 0
local last
for place = 3, #ARGV, 2 do
  local iteration = tonumber(ARGV[place])
  if iteration > published then
    last = ARGV[place + 1]
    redis.call('XADD', key('events', id), ARGV[place] .. '-0', 'kind', 'progress', 'payload', last)
    published, fresh = iteration, fresh + 1
  end
end
if last then
  set(id, 'published', published, 'progress', last, 'changes', 0)
  redis.call('HDEL', key('job', id), 'preparing')
  count_event('iterations', fresh)
end
return field(id, 'cancel_requested') == '1' and 'cancel_requested' or 'held'
