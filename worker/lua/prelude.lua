-- Shared by every script: names of keys, and the few moves a job can make.
-- All state changes happen here, each inside one script, so that no reader ever sees half of one.
local CRASHES = 3 -- attempts in a row that may die without advancing

local function key(kind, id) return 'ncp:' .. kind .. ':' .. id end
local LEASES, WAITING, UNSETTLED = 'ncp:leases', 'ncp:waiting', 'ncp:unsettled'
local QUEUED, COUNTS = 'ncp:queued', 'ncp:counts' -- since when each job waits; what has happened so often

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function field(id, name) return redis.call('HGET', key('job', id), name) end
local function number(id, name) return tonumber(field(id, name) or 0) end
local function set(id, ...) redis.call('HSET', key('job', id), ...) end

-- What has happened on this server, for /metrics.
local function tally(what, by) redis.call('HINCRBY', COUNTS, what, by) end

-- What an owner has taken: bytes, ended jobs by state, computing seconds.
local function count(owner, name, amount) redis.call('HINCRBY', key('usage', owner), name, amount) end

local function stored_bytes(owner)
  local found = redis.call('HMGET', key('usage', owner), 'tensor_bytes', 'result_bytes')
  return tonumber(found[1] or 0) + tonumber(found[2] or 0)
end

local function live_jobs(owner)
  return redis.call('ZCARD', key('queue', owner)) + redis.call('SCARD', key('running', owner))
end

-- What attempts that died have computed in vain counts as well.
local function computed_seconds(id)
  local progress = field(id, 'progress')
  return math.max(progress and cjson.decode(progress).seconds or 0, number(id, 'spent'))
end

-- Only the holder of the newest claim may write, and only while the job runs.
local function holds(id, fence)
  if field(id, 'fence') == fence and field(id, 'state') == 'running' then return true end
  tally('fenced_writes', 1)
  return false
end

-- An event id is <last published iteration>-<changes since then>: it grows, and a stored history gives the same.
local function announce(id, kind, payload)
  local count = redis.call('HINCRBY', key('job', id), 'changes', 1)
  local place = (field(id, 'published') or '0') .. '-' .. count
  redis.call('XADD', key('events', id), place, 'kind', kind, 'payload', payload)
end

local function enter(id, state)
  set(id, 'state', state)
  announce(id, 'state', '{"state":"' .. state .. '","attempt":' .. number(id, 'attempt') .. '}')
end

-- Higher priority first, then older first.
local function enqueue(id)
  local owner = field(id, 'owner')
  local score = (10 - number(id, 'priority')) * 1e12 + number(id, 'sequence')
  redis.call('ZADD', key('queue', owner), score, id)
  redis.call('SADD', WAITING, owner)
  redis.call('ZADD', QUEUED, now(), id)
  enter(id, 'queued')
end

local function leave_queue(id)
  local owner = field(id, 'owner')
  redis.call('ZREM', key('queue', owner), id)
  redis.call('ZREM', QUEUED, id)
  if redis.call('ZCARD', key('queue', owner)) == 0 then redis.call('SREM', WAITING, owner) end
end

local function leave_worker(id)
  redis.call('ZREM', LEASES, id)
  redis.call('SREM', key('running', field(id, 'owner')), id)
end

-- What a live job needs cannot be deleted: its tensor, and the job it starts from.
local function needs(id)
  local list = { key('users', field(id, 'tensor_id')) }
  local initial = field(id, 'initial')
  if initial then list[2] = key('users', initial) end
  return list
end

-- When a tensor was last uploaded, looked up, named by a job or read by one. Before that was recorded: from now on.
local function use(tensor)
  if redis.call('EXISTS', key('tensor', tensor)) == 1 then redis.call('HSET', key('tensor', tensor), 'used_at', now()) end
end

local function used_at(tensor)
  redis.call('HSETNX', key('tensor', tensor), 'used_at', now())
  return tonumber(redis.call('HGET', key('tensor', tensor), 'used_at'))
end

-- The record is gone; the files go next. If whoever removes them dies, a later look finds them by this.
local function discard(kind, id) redis.call('ZADD', 'ncp:discarded', now(), kind .. ':' .. id) end

local function finish(id, state, result, failure)
  leave_queue(id)
  leave_worker(id)
  for _, users in ipairs(needs(id)) do redis.call('SREM', users, id) end
  use(field(id, 'tensor_id'))
  if result ~= '' then set(id, 'result', result) end
  if failure ~= '' then set(id, 'error', failure) end
  set(id, 'finished_at', now())
  tally('ended_' .. state, 1)
  count(field(id, 'owner'), state, 1)
  redis.call('HINCRBYFLOAT', key('usage', field(id, 'owner')), 'seconds', computed_seconds(id))
  enter(id, state)
  announce(id, 'end', '')
  redis.call('SADD', UNSETTLED, id)
end

local function died(how)
  return cjson.encode({
    kind = 'system',
    message = 'the job died ' .. CRASHES .. ' times in a row without getting any further; the last time ' .. how,
    remedy = 'look at the log and the memory of the worker, then submit the job again',
  })
end

-- An attempt died. Whoever advanced may try again; whoever never does is stopped.
local function crash(id, how)
  local reached = math.max(number(id, 'published'), number(id, 'checkpoint_iteration'))
  local stalls = reached > number(id, 'claimed_from') and 0 or number(id, 'stalls') + 1
  set(id, 'stalls', stalls)
  if field(id, 'cancel_requested') == '1' then return finish(id, 'cancelled', '', '') end
  if stalls >= CRASHES then return finish(id, 'failed', '', died(how)) end
  leave_worker(id)
  enqueue(id)
end
