-- Shared by all scripts: the account of each owner, and who gives way to whom. HALF_LIFE and TURN, in seconds, are put
-- before these functions from the settings.
--
-- An account is recent computing time: it grows by a second for each second and each worker that the owner's jobs use,
-- divided by the owner's weight, and half of it is forgotten after HALF_LIFE. Workers in use only change when a job is
-- claimed or leaves its worker, so it is brought up to date then, and needs no writes in between.

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

-- Bring the account of an owner up to date. Call this before its workers or its weight change.
local function charge(owner, at)
  local share = share_of(owner, at)
  redis.call('HSET', key('share', owner), 'account', string.format('%.6f', share.account), 'recent',
    string.format('%.6f', share.recent), 'charged_at', share.time)
  return share
end

-- The lowest account of an owner with live jobs. It never falls except by forgetting, so it is kept for those who come
-- when no other owner is there.
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

-- Raise an account to the floor: who was away, or alone on an idle server, neither gains nor loses by that.
local function raise_to_floor(owner)
  local floor, share = account_floor(), charge(owner)
  if share.account < floor then redis.call('HSET', key('share', owner), 'account', string.format('%.6f', floor)) end
end

-- Note that an owner has a live job.
local function join(owner)
  if redis.call('SISMEMBER', ACTIVE, owner) == 1 then return end
  raise_to_floor(owner)
  redis.call('SADD', ACTIVE, owner)
end

-- Note that a job has left the queue or its worker, which may have been the last of its owner.
local function leave(owner)
  if redis.call('ZCARD', key('queue', owner)) > 0 or redis.call('ZCARD', key('busy', owner)) > 0 then return end
  if redis.call('SISMEMBER', ACTIVE, owner) == 0 then return end
  account_floor()
  redis.call('SREM', ACTIVE, owner)
end

-- Note that a process of an owner, named by its job or batch, uses a worker.
local function occupy(owner, process)
  charge(owner)
  redis.call('ZADD', key('busy', owner), now(), process)
end

-- Note that a process has left its worker, by default now.
local function vacate(owner, process, at)
  redis.call('HDEL', YIELDING, process)
  if not redis.call('ZSCORE', key('busy', owner), process) then return end
  charge(owner, at)
  redis.call('ZREM', key('busy', owner), process)
end

-- What decides who is next: the lowest account, where each worker in use counts as a whole turn.
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

