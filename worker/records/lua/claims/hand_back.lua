#!lua flags=allow-oom
-- id, fence: return the job to the queue without counting the attempt. The record of a job that gives way has the reason.
local id, fence = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
local WORDS = {
  others = 'gives way to other users',
  priority = 'gives way to a job of higher priority',
  operator = 'paused by the operator',
}

-- The time as ISO 8601. Redis gives scripts no calendar.
local function timestamp()
  local time = now()
  local days, seconds = math.floor(time / 86400000), math.floor(time / 1000) % 86400
  local shifted = days + 719468
  local era = math.floor(shifted / 146097)
  local day = shifted - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  local ordinal = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * ordinal + 2) / 153)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year + era * 400 + (month >= 10 and 1 or 0),
    month < 10 and month + 3 or month - 9, ordinal - math.floor((153 * month + 2) / 5) + 1, math.floor(seconds / 3600),
    math.floor(seconds / 60) % 60, seconds % 60, time % 1000)
end

-- The fraction of the iterations or seconds that the job may use, whichever is larger; of a choice its own progress.
local function fraction_done()
  local progress, study = field(id, 'progress'), field(id, 'study_id')
  if field(id, 'task') == 'choose' then return tonumber(study_field(study, 'progress') or nil) end
  if not progress then return nil end
  local stop, done, reached = cjson.decode(field(id, 'request')).settings.stop, 0, cjson.decode(progress)
  if type(stop.max_iterations) == 'number' then done = reached.iteration / stop.max_iterations end
  if type(stop.max_seconds) == 'number' then done = math.max(done, reached.seconds / stop.max_seconds) end
  return done > 0 and math.min(1, done) or nil
end

redis.call('HINCRBY', key('job', id), 'attempt', -1)
if field(id, 'cancel_requested') == '1' then
  finish(id, 'cancelled', '', '')
  return 1
end
local reason = redis.call('HGET', YIELDING, field(id, 'batch') or id)
if reason and field(id, 'advanced') == fence then
  local done = fraction_done()
  set(id, 'paused', cjson.encode({
    iteration = number(id, 'published'),
    since = timestamp(),
    reason = reason,
    done = done or cjson.null,
    message = WORDS[reason] .. (done and string.format(', %.0f %% done', 100 * done) or ''),
  }))
  count_event('paused', 1)
end
release_worker(id)
enqueue(id)
return 1
