-- worker, lease milliseconds. Fair: the owner with the lowest account, where each running job counts as a whole turn. Then
-- the job with the highest priority, then the oldest.
local worker, lease = unpack(ARGV)

local function next_job()
  for _, share in ipairs(waiting_shares()) do
    local id = first_queued(share.owner)
    if id then return id, share.owner end
  end
end

while true do
  local id, owner = next_job()
  if not id then return false end
  local study = field(id, 'study_id')
  if study and study_field(study, 'cancel_requested') == '1' then
    finish(id, 'cancelled', '', '') -- the cancellation of its study was interrupted
  else
    redis.call('ZADD', SERVED, redis.call('INCR', SERVING), owner)
    local batch = field(id, 'shared') == '1' and id .. '-' .. number(id, 'fence') + 1
    return start_attempt(id, worker, lease, batch)
  end
end
