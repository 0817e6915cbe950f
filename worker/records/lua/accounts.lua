-- Shared by all scripts: the account of each owner, and the order in which owners are served. HALF_LIFE and TURN, in
-- seconds, are settings, and are defined before these functions.
--
-- An account is recent computing time, divided by the owner's weight: it grows by a second for each second on each worker
-- that the owner's jobs use, and decays with HALF_LIFE. Workers in use only change when a job is
-- claimed or leaves its worker, so it is updated then, and needs no writes in between.

local LN2 = 0.6931471805599453

local function decay(milliseconds) return 0.5 ^ (math.max(0, milliseconds) / 1000 / HALF_LIFE) end

-- The account of an owner at a time, by default now. `recent` is the same without the weight, and without what `join` adds.
local function share_of(owner, at)
  local found = redis.call('HMGET', key('share', owner), 'account', 'recent', 'charged_at', 'weight', 'held')
  local charged = math.min(found[3] or now(), now()) -- the clock may have been set back
  local time = math.max(at or now(), charged)
  local workers, weight, left = redis.call('ZCARD', key('busy', owner)), tonumber(found[4] or 1), decay(time - charged)
  local grown = workers * HALF_LIFE / LN2 * (1 - left)
  return {
    owner = owner,
    time = time,
    workers = workers,
    weight = weight,
    held = found[5],
    queued = redis.call('ZCARD', key('queue', owner)) + (redis.call('HGET', PLANNED, owner) or 0),
    account = (found[1] or 0) * left + grown / weight,
    recent = (found[2] or 0) * left + grown,
  }
end

-- Update the account of an owner. Call this before its workers or its weight change.
local function charge(owner, at)
  local share = share_of(owner, at)
  redis.call('HSET', key('share', owner), 'account', string.format('%.6f', share.account), 'recent',
    string.format('%.6f', share.recent), 'charged_at', share.time)
  return share
end

-- The lowest account of an owner with live jobs. It falls only by decay, and is stored for owners who come
-- when no other owner has a live job.
local function account_floor()
  local found, time = redis.call('HMGET', FLOOR, 'account', 'at'), now()
  local floor, lowest = (found[1] or 0) * decay(time - (found[2] or time)), nil
  for _, owner in ipairs(redis.call('SMEMBERS', ACTIVE)) do
    local share = share_of(owner)
    if not share.held then lowest = math.min(lowest or share.account, share.account) end
  end
  floor = math.max(floor, lowest or 0)
  redis.call('HSET', FLOOR, 'account', string.format('%.6f', floor), 'at', time)
  return floor
end

-- Raise an account to the floor, so that an owner gains nothing by having been away.
local function raise_to_floor(owner)
  local floor, share = account_floor(), charge(owner)
  if share.account < floor then redis.call('HSET', key('share', owner), 'account', string.format('%.6f', floor)) end
end

-- Record that an owner has a live job.
local function join(owner)
  if redis.call('SISMEMBER', ACTIVE, owner) == 1 then return end
  raise_to_floor(owner)
  redis.call('SADD', ACTIVE, owner)
end

-- Record that a job has left the queue or its worker; it may have been the last one of its owner.
local function leave(owner)
  if redis.call('ZCARD', key('queue', owner)) > 0 or redis.call('ZCARD', key('busy', owner)) > 0 then return end
  if redis.call('SISMEMBER', ACTIVE, owner) == 0 then return end
  account_floor()
  redis.call('SREM', ACTIVE, owner)
end

-- Record that a process of an owner, named by its job or batch, uses a worker.
local function occupy(owner, process)
  charge(owner)
  redis.call('ZADD', key('busy', owner), now(), process)
end

-- Record that a process has left its worker, by default now.
local function vacate(owner, process, at)
  redis.call('HDEL', YIELDING, process)
  if not redis.call('ZSCORE', key('busy', owner), process) then return end
  charge(owner, at)
  redis.call('ZREM', key('busy', owner), process)
end

-- The number by which owners are ordered, the lowest first: the account, plus a turn for each worker in use.
local function standing(share) return share.account + share.workers * TURN / share.weight end

-- The shares of the waiting owners, the next one first, without those that the operator has paused.
local function waiting_shares()
  local shares = {}
  for _, owner in ipairs(redis.call('SMEMBERS', WAITING)) do
    local share = share_of(owner)
    if not share.held then
      share.standing, share.served = standing(share), tonumber(redis.call('ZSCORE', SERVED, owner) or 0)
      table.insert(shares, share)
    end
  end
  table.sort(shares, function(one, other)
    if one.standing ~= other.standing then return one.standing < other.standing end
    if one.served ~= other.served then return one.served < other.served end
    return one.owner < other.owner
  end)
  return shares
end

