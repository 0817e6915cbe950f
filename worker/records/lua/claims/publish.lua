-- id, fence, iterations whose history is reserved at submission, bytes of an iteration, then iteration and payload in turn
-- -> lost, held, cancel_requested, or full if the history passes the quota. Iterations that readers have seen are skipped.
local id, fence, reserved, row_bytes = unpack(ARGV, 1, 4)
if not holds_claim(id, fence) then return 'lost' end
local published, fresh = number(id, 'published'), 0
local last
for place = 5, #ARGV, 2 do
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
  local beyond, quota = math.min(fresh, published - reserved), field(id, 'quota')
  if beyond > 0 and field(id, 'reserved') then
    local owner = field(id, 'owner')
    reserve(key('job', id), owner, beyond * row_bytes)
    if quota and stored_bytes(owner) > tonumber(quota) then return 'full' end
  end
end
return field(id, 'cancel_requested') == '1' and 'cancel_requested' or 'held'
