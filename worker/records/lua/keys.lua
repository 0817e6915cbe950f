-- Shared by all scripts: the names of keys, the same as in keys.py, and the clock.

local function key(kind, id) return 'ncp:' .. kind .. ':' .. id end
local LEASES, WAITING, UNSETTLED = 'ncp:leases', 'ncp:waiting', 'ncp:unsettled'
local SEQUENCE, SERVED, SERVING = 'ncp:sequence', 'ncp:served', 'ncp:serving'
local QUEUED, COUNTS = 'ncp:queued', 'ncp:counts' -- since when each job waits; counters
local OWNERS, WORKERS, DISCARDED = 'ncp:owners', 'ncp:workers', 'ncp:discarded'
local UPLOADS = 'ncp:uploads' -- reservations of running uploads
local UNINSPECTED = 'ncp:uninspected' -- contents of new tensors whose zeros are still to be inspected
local PREPARING = 'ncp:preparing' -- recent progress of preparations
local PLANNED = 'ncp:planned' -- queued runs of each owner that have no record yet
local ENDING = 'ncp:ending' -- comparisons that lack only a recommendation, with the time of the next attempt to make it
local ACTIVE, FLOOR = 'ncp:active', 'ncp:floor' -- owners with live jobs; the lowest account of theirs
local SLOTS, YIELDING = 'ncp:slots', 'ncp:yielding' -- jobs that each worker runs at once; processes that should give way, and why

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

