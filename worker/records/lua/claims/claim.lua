-- worker, lease milliseconds. Fair: the owner with the fewest running jobs, then the one served longest ago.
local worker, lease = unpack(ARGV)
while true do
  local id, owner, fewest, oldest
  for _, candidate in ipairs(redis.call('SMEMBERS', WAITING)) do
    local running = redis.call('SCARD', key('running', candidate))
    local served = tonumber(redis.call('ZSCORE', SERVED, candidate) or 0)
    local first = first_queued(candidate)
    if first and (not owner or running < fewest or (running == fewest and served < oldest)) then
      id, owner, fewest, oldest = first, candidate, running, served
    end
  end
  if not owner then return false end
  local study = field(id, 'study_id')
  if study and study_field(study, 'cancel_requested') == '1' then
    finish(id, 'cancelled', '', '') -- the cancellation of its study was interrupted
  else
    redis.call('ZADD', SERVED, redis.call('INCR', SERVING), owner)
    local batch = field(id, 'shared') == '1' and id .. '-' .. number(id, 'fence') + 1
    return start_attempt(id, worker, lease, batch)
  end
end
