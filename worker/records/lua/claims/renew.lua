#!lua flags=allow-oom
-- id, fence, lease milliseconds, seconds spent, seconds that a resume costs ('' before the first new sweep) -> lost,
-- cancel_requested or held; paused: hand the job back now; yield: hand it back after a checkpoint
local id, fence, lease, spent, cost = unpack(ARGV)
if not holds_claim(id, fence) then return 'lost' end
redis.call('ZADD', LEASES, now() + lease, id)
if tonumber(spent) > number(id, 'spent') then set(id, 'spent', spent) end
if cost ~= '' and (field(id, 'advanced') ~= fence or field(id, 'resume_seconds') ~= cost) then
  set(id, 'advanced', fence, 'resume_seconds', cost)
end
if field(id, 'cancel_requested') == '1' then return 'cancel_requested' end
local mine, owner = field(id, 'batch') or id, field(id, 'owner')
-- A turn lasts at least this many times what a resume costs, so that at most 2 % of the time is lost to switching.
local RESUMES_PER_TURN = 50

-- Whether the turn of a process that began at `since` is over. A job must have computed a new sweep.
local function has_had_its_turn(process, since)
  local shortest = TURN
  if not string.find(process, '-', 1, true) then -- not a batch, which is never resumed
    local found = redis.call('HMGET', key('job', process), 'fence', 'advanced', 'resume_seconds')
    if not found[2] or found[1] ~= found[2] then return false end
    shortest = math.max(shortest, RESUMES_PER_TURN * found[3])
  end
  return since + 1000 * shortest <= now()
end

-- Order of the jobs of an owner: the one with the highest number gives way first.
local function rank_of(process)
  local job = string.match(process, '^[^-]+')
  return (10 - number(job, 'priority')) * 1e12 + number(job, 'sequence')
end

-- Number of idle workers. If an owner has waited for two turns, they do not take jobs, and do not count.
local function free_workers(waiting, busy)
  for _, share in ipairs(waiting) do
    local first = first_queued(share.owner)
    local since = first and redis.call('ZSCORE', QUEUED, first)
    if since and now() - since > 2000 * TURN then return 0 end
  end
  local slots = 0
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, now() - lease, now() + lease)) do
    slots = slots + (redis.call('HGET', SLOTS, worker) or 1)
  end
  return math.max(0, slots - busy)
end

-- Reason why this process should give way, or nil: another owner with a lower account waits, a job of the same owner with a
-- higher priority waits, or the operator has paused the owner. Idle workers, and those of processes that already give way,
-- are first assigned to the next owners, so no more jobs give way than necessary, and none on an idle server.
local function reason_to_yield()
  if redis.call('HEXISTS', key('share', owner), 'held') == 1 then return 'operator' end
  local waiting = waiting_shares()
  local since = redis.call('ZSCORE', key('busy', owner), mine)
  if #waiting == 0 or not since or not has_had_its_turn(mine, since) then return nil end

  local yielding, shares, candidates, busy, given = {}, {}, {}, 0, 0
  local flat = redis.call('HGETALL', YIELDING)
  for place = 1, #flat, 2 do yielding[flat[place]] = true end
  for _, share in ipairs(waiting) do shares[share.owner] = share end
  for _, other in ipairs(redis.call('SMEMBERS', ACTIVE)) do
    local share = shares[other] or share_of(other)
    if share.held then share.queued = 0 end
    shares[other] = share
    local processes = redis.call('ZRANGE', key('busy', other), 0, -1, 'WITHSCORES')
    for place = 1, #processes, 2 do
      local process = processes[place]
      busy = busy + 1
      if process ~= mine and yielding[process] then
        given = given + 1
        share.workers = share.workers - 1
        if not share.held then share.queued = share.queued + 1 end
      elseif process == mine or has_had_its_turn(process, processes[place + 1]) then
        table.insert(candidates, { share = share, process = process })
      end
    end
  end

  local function next_share(except)
    local first
    for _, share in pairs(shares) do
      if share ~= except and share.queued > 0 and (not first or standing(share) < standing(first)) then first = share end
    end
    return first
  end
  for _ = 1, given + free_workers(waiting, busy) do
    local share = next_share()
    if not share then return nil end
    share.workers, share.queued = share.workers + 1, share.queued - 1
  end

  local own, rank = shares[owner], rank_of(mine)
  local is_last_of_owner, is_last = true, true
  for _, one in ipairs(candidates) do
    if one.share == own and one.process ~= mine and rank_of(one.process) > rank then
      is_last_of_owner, is_last = false, false
    elseif one.share ~= own and standing(one.share) > standing(own) then
      is_last = false
    end
  end
  own.workers = own.workers - 1
  local other, first = next_share(own), own.queued > 0 and first_queued(owner)
  if is_last and other and standing(other) < standing(own) then return 'others' end
  if is_last_of_owner and first and number(first, 'priority') > number(id, 'priority') then return 'priority' end
  return nil
end

local reason = reason_to_yield()
local before = redis.call('HGET', YIELDING, mine)
if reason and reason ~= before then
  redis.call('HSET', YIELDING, mine, reason)
elseif before and not reason then
  redis.call('HDEL', YIELDING, mine)
end
return reason == 'operator' and 'paused' or reason and 'yield' or 'held'
