-- Shared by all scripts: the transitions of a job.
-- Every change of state happens in one script, so readers never see half of it.

-- Latest version of the records of jobs, studies and tensors, as in versions.py, and the version of those that have not
-- changed since the first release. Those from before it have none.
local VERSION, FIRST_VERSION = 2, 1

local function field(id, name) return redis.call('HGET', key('job', id), name) end
local function number(id, name) return tonumber(field(id, name) or 0) end
local function set(id, ...) redis.call('HSET', key('job', id), ...) end

-- The first queued job of an owner that this release can run: those of a later release wait for a worker of that release.
local function first_queued(owner)
  for _, id in ipairs(redis.call('ZRANGE', key('queue', owner), 0, 99)) do
    if number(id, 'version') <= VERSION then return id end
  end
end

-- Counters for /metrics.
local function count_event(what, by) redis.call('HINCRBY', COUNTS, what, by) end

-- Usage of an owner: bytes, ended jobs by state, computing seconds.
local function add_usage(owner, name, amount) redis.call('HINCRBY', key('usage', owner), name, amount) end

-- Bytes of an owner that are stored or reserved.
local function stored_bytes(owner)
  local found = redis.call('HMGET', key('usage', owner), 'tensor_bytes', 'result_bytes', 'reserved_bytes')
  return tonumber(found[1] or 0) + tonumber(found[2] or 0) + tonumber(found[3] or 0)
end

-- Reserve bytes of an owner's quota for what a live job or study, with this record, may still store.
local function reserve(record, owner, nbytes)
  redis.call('HINCRBY', record, 'reserved', nbytes)
  add_usage(owner, 'reserved_bytes', nbytes)
end

local function release_reserved(record, owner)
  local held = tonumber(redis.call('HGET', record, 'reserved') or 0)
  redis.call('HDEL', record, 'reserved')
  add_usage(owner, 'reserved_bytes', 0 - held)
end

-- Bytes that the running uploads of an owner have reserved.
local function upload_bytes(owner)
  local nbytes = 0
  for _, text in ipairs(redis.call('HVALS', UPLOADS)) do
    local upload = cjson.decode(text)
    if upload.owner == owner and upload.expires >= now() then nbytes = nbytes + upload.reserved end
  end
  return nbytes
end

local function study_field(study, name) return redis.call('HGET', key('study', study), name) end

-- The number of runs of a study that will get a record.
local function unrecorded(study)
  local plan = redis.call('HMGET', key('study', study), 'planned', 'taken', 'ahead')
  return tonumber(plan[1] or 0) - tonumber(plan[2] or 0) - tonumber(plan[3] or 0)
end

-- Return the live jobs of an owner, where a study counts as one however many of its runs are left, and the runs left.
local function live_jobs(owner)
  local live = redis.call('ZCARD', key('queue', owner)) + redis.call('SCARD', key('running', owner))
  local runs = 0
  for _, study in ipairs(redis.call('SMEMBERS', key('live', owner))) do
    local left = tonumber(study_field(study, 'left'))
    live, runs = live + 1 - (left - unrecorded(study)), runs + left
  end
  return live, runs
end

-- The time of attempts that died counts as well.
local function computed_seconds(id)
  local progress = field(id, 'progress')
  return math.max(progress and cjson.decode(progress).seconds or 0, number(id, 'spent'))
end

-- Only the holder of the newest claim may write, and only while the job runs.
local function holds_claim(id, fence)
  if field(id, 'fence') == fence and field(id, 'state') == 'running' then return true end
  count_event('fenced_writes', 1)
  return false
end

-- An event id is <last published iteration>-<changes since then>: it grows, and a stored history gives the same.
-- For a job that was settled when it ended, the event only says that the rest is in the store.
local function announce(id, kind, payload)
  local count = redis.call('HINCRBY', key('job', id), 'changes', 1)
  local place = (field(id, 'published') or '0') .. '-' .. count
  if field(id, 'settled') == '1' then kind, payload = 'stored', '' end
  redis.call('XADD', key('events', id), place, 'kind', kind, 'payload', payload)
end

-- Publish an event of a study. These are few, and are kept with the study.
local function announce_study(study, kind, payload)
  local count = redis.call('HINCRBY', key('study', study), 'events', 1)
  redis.call('XADD', key('events', study), count .. '-0', 'kind', kind, 'payload', payload, 'of', 'study')
end

local function set_study_state(study, state)
  redis.call('HSET', key('study', study), 'state', state)
  announce_study(study, 'state', '{"state":"' .. state .. '"}')
end

-- End a study. It has failed only if no run succeeded.
local function end_study(study)
  local owner, reference = study_field(study, 'owner'), study_field(study, 'reference')
  local succeeded, failed = tonumber(study_field(study, 'succeeded')), tonumber(study_field(study, 'failed'))
  local unfinished = tonumber(study_field(study, 'cancelled')) > 0 or study_field(study, 'validation') == 'cancelled'
  local state = 'succeeded'
  if unfinished and (study_field(study, 'cancel_requested') == '1' or succeeded == 0) then
    state = 'cancelled'
  elseif succeeded == 0 and failed > 0 then
    state = 'failed'
  end
  redis.call('SREM', key('live', owner), study)
  release_reserved(key('study', study), owner)
  if reference then redis.call('SREM', key('users', reference), study) end
  redis.call('HSET', key('study', study), 'finished_at', now())
  set_study_state(study, state)
  announce_study(study, 'end', '')
end

-- A comparison whose last run has ended ends once a worker has stored its recommendation. Without a run that succeeded
-- there is none.
local function end_runs(study)
  if study_field(study, 'kind') == 'compare' and tonumber(study_field(study, 'succeeded')) > 0 then
    redis.call('ZADD', ENDING, now(), study)
  else
    end_study(study)
  end
end

-- Count a change of state of a run in its study, which starts with the first run and ends with the last.
local function update_study(study, id, before, state)
  local record, validates = key('study', study), field(id, 'task') == 'validate'
  if not validates then
    if before then redis.call('HINCRBY', record, before, -1) end
    redis.call('HINCRBY', record, state, 1)
  end
  if state == 'queued' then return end
  if state == 'running' then
    if study_field(study, 'state') == 'queued' then
      redis.call('HSET', record, 'started_at', now())
      set_study_state(study, 'running')
    end
    return
  end
  local failure, left = field(id, 'error'), redis.call('HINCRBY', record, 'left', -1)
  if validates then
    redis.call('HSET', record, 'validation', state)
  else
    local place = { job_id = id, state = state, cell = number(id, 'cell'), total = tonumber(study_field(study, 'total')) }
    place['repeat'] = number(id, 'repeat')
    place.done = study_field(study, 'succeeded') + study_field(study, 'failed') + study_field(study, 'cancelled')
    announce_study(study, 'run', cjson.encode(place))
  end
  if failure then redis.call('HSETNX', record, validates and 'validation_error' or 'error', failure) end
  if left == 0 then end_runs(study) end
end

local function set_state(id, state)
  local before, study, paused = field(id, 'state'), field(id, 'study_id'), ''
  if state == 'queued' and field(id, 'paused') then paused = ',"paused":' .. field(id, 'paused') end
  set(id, 'state', state)
  announce(id, 'state', '{"state":"' .. state .. '","attempt":' .. number(id, 'attempt') .. paused .. '}')
  if study then update_study(study, id, before, state) end
end

-- Higher priority first, then older first.
local function queue_score(priority, sequence) return (10 - priority) * 1e12 + sequence end

local function enqueue(id)
  local owner = field(id, 'owner')
  join(owner)
  redis.call('ZADD', key('queue', owner), queue_score(number(id, 'priority'), number(id, 'sequence')), id)
  redis.call('SADD', WAITING, owner)
  redis.call('ZADD', QUEUED, now(), id)
  set_state(id, 'queued')
end

-- Number of queued jobs of each owner, without owners that the operator has paused.
local function queue_lengths()
  local lengths = {}
  for _, owner in ipairs(redis.call('SMEMBERS', WAITING)) do
    if redis.call('HEXISTS', key('share', owner), 'held') == 0 then
      lengths[owner] = redis.call('ZCARD', key('queue', owner)) + tonumber(redis.call('HGET', PLANNED, owner) or 0)
    end
  end
  return lengths
end

-- Place of a job with this score in the queue, 0 without a score or while its owner is paused. Owners take turns.
local function position(owner, score, lengths)
  if not score or not lengths[owner] then return 0 end
  local ahead = redis.call('ZCOUNT', key('queue', owner), '-inf', '(' .. string.format('%.0f', score))
  for _, study in ipairs(redis.call('ZRANGE', key('plans', owner), 0, -1)) do
    local plan = redis.call('HMGET', key('study', study), 'priority', 'base', 'taken')
    local before = score - queue_score(plan[1], plan[2] + plan[3])
    ahead = ahead + math.max(0, math.min(unrecorded(study), before))
  end
  local place = 1 + ahead
  for other, length in pairs(lengths) do
    if other ~= owner then place = place + math.min(length, ahead) end
  end
  return place
end

-- Take a job off its worker, by default now. The worker of a batch is free after the last of its runs.
local function release_worker(id, at)
  local owner, batch = field(id, 'owner'), field(id, 'batch')
  redis.call('ZREM', LEASES, id)
  redis.call('SREM', key('running', owner), id)
  if batch then redis.call('SREM', key('batch', batch), id) end
  if not batch or redis.call('SCARD', key('batch', batch)) == 0 then vacate(owner, batch or id, at) end
  redis.call('HDEL', key('job', id), 'phase', 'preparing', 'batch')
end

-- Inputs of a live job, which cannot be deleted: its tensor, its mask, and the jobs whose factors it uses.
local function dependency_keys(id)
  local list = {}
  for _, name in ipairs({ 'tensor_id', 'mask', 'initial', 'fixed' }) do
    local needed = field(id, name)
    if needed then table.insert(list, key('users', needed)) end
  end
  return list
end

-- Record the last use of a tensor: its upload, a search by its digest, or a job.
local function mark_used(tensor)
  if redis.call('EXISTS', key('tensor', tensor)) == 1 then redis.call('HSET', key('tensor', tensor), 'used_at', now()) end
end

local function mark_inputs_used(id)
  mark_used(field(id, 'tensor_id'))
  local mask = field(id, 'mask')
  if mask then mark_used(mask) end
end

local function used_at(tensor)
  redis.call('HSETNX', key('tensor', tensor), 'used_at', now())
  return tonumber(redis.call('HGET', key('tensor', tensor), 'used_at'))
end

-- Names of an owner's records in the form used for searching; empty for those without a name.
local function names_of(kind, owner) return key('names', kind .. ':' .. owner) end

-- Remember a deleted record, so that a later cleanup finds its files if their removal is interrupted.
local function discard(kind, id) redis.call('ZADD', DISCARDED, now(), kind .. ':' .. id) end

-- Labels are stored under their digest, as long as the record of a tensor, job or study refers to them. Each counts once for
-- an owner, however many of the owner's records do.
local function unlabel(record)
  local digest = redis.call('HGET', record, 'axes')
  if not digest then return end
  redis.call('HDEL', record, 'axes')
  redis.call('SREM', key('labelled', digest), record)
  local owner = redis.call('HGET', record, 'owner')
  if redis.call('HEXISTS', key('labels', owner), digest) == 1 and redis.call('HINCRBY', key('labels', owner), digest, -1) <= 0 then
    redis.call('HDEL', key('labels', owner), digest)
    add_usage(owner, 'label_bytes', 0 - redis.call('STRLEN', key('axes', digest)))
  end
  if redis.call('SCARD', key('labelled', digest)) == 0 then redis.call('DEL', key('axes', digest)) end
end

local function label(record, digest)
  local owner = redis.call('HGET', record, 'owner')
  redis.call('HSET', record, 'axes', digest)
  redis.call('SADD', key('labelled', digest), record)
  if redis.call('HINCRBY', key('labels', owner), digest, 1) == 1 then
    add_usage(owner, 'label_bytes', redis.call('STRLEN', key('axes', digest)))
  end
end

-- Return the inputs of a job as names and values of its record: their ids, and the digests of the tensors.
local function input_fields(tensor, initial, mask, fixed)
  local found = { 'tensor_id', tensor, 'sha256', redis.call('HGET', key('tensor', tensor), 'sha256') }
  for name, id in pairs({ initial = initial, mask = mask, fixed = fixed }) do
    if id ~= '' then
      table.insert(found, name)
      table.insert(found, id)
    end
  end
  if mask ~= '' then
    table.insert(found, 'mask_sha256')
    table.insert(found, redis.call('HGET', key('tensor', mask), 'sha256'))
  end
  return found
end

-- Write the record of a job, given as names and values, and queue it with the labels of its tensor.
local function create(id, record, axes)
  set(id, 'id', id, 'attempt', 0, 'fence', 0, 'published', 0, unpack(record))
  if axes then label(key('job', id), axes) end
  for _, users in ipairs(dependency_keys(id)) do redis.call('SADD', users, id) end
  mark_inputs_used(id)
  if field(id, 'task') ~= 'validate' then
    redis.call('ZADD', key('jobs', field(id, 'owner')), number(id, 'sequence'), id)
  end
  enqueue(id)
end

-- Plans. A study keeps a plan of its runs, and one run at a time waits in the queue: when it leaves, the next becomes a
-- record. The id of a run follows from its study and its place in the plan, so that it can be read before it has a record.

local function run_id(study, place) return string.sub(study, 1, 14) .. string.format('%06x', place + 1) end

-- Return the study whose plan has a run, and its place there; nothing for other jobs.
local function plan_of(id)
  local study, place = string.sub(id, 1, 14) .. '000000', (tonumber(string.sub(id, 15), 16) or 0) - 1
  local found = redis.call('HMGET', key('study', study), 'planned', 'state')
  if found[1] and found[2] ~= 'deleted' and place >= 0 and place < tonumber(found[1]) and run_id(study, place) == id then
    return study, place
  end
end

-- Return the part of a plan that all repeats of a cell share, then cell and repeat. The list of the plan has an entry
-- for each cell, the seed of each repeat, and last the validation.
local function planned_cell(study, place)
  local plan = redis.call('HMGET', key('study', study), 'cells', 'repeats')
  local cells, repeats = tonumber(plan[1]), tonumber(plan[2])
  local cell, of_cell = place % cells, math.floor(place / cells)
  local is_validation = of_cell == repeats
  local part = redis.call('LINDEX', key('plan', study), is_validation and cells + repeats or cell)
  if is_validation then return cjson.decode(part), 0, 0 end
  return cjson.decode(part), cell, of_cell, redis.call('LINDEX', key('plan', study), cells + of_cell)
end

-- The request of a run. Text is joined and not decoded: that would round its numbers.
local function planned_request(study, place)
  local part, _, of_cell, seed = planned_cell(study, place)
  if part.title == cjson.null then return part.text end
  local name = part.title .. ', run ' .. of_cell + 1
  return study_field(study, 'common') .. part.text .. ', "seed": ' .. seed .. '}, "name": ' .. cjson.encode(name) .. '}'
end

-- Names and values of the record of a run, and the labels of its tensor.
local function planned_record(study, place)
  local part, cell, of_cell = planned_cell(study, place)
  local found = redis.call('HMGET', key('study', study), 'owner', 'priority', 'created_at', 'base', 'axes', 'label_bytes')
  local record = { 'version', VERSION, 'owner', found[1], 'priority', found[2], 'created_at', found[3], 'sequence',
    string.format('%.0f', found[4] + place), 'method', part.method, 'request', planned_request(study, place),
    'reserved', part.reserved + part.labels * (found[6] or 0), 'study_id', study, 'task', part.task, 'cell', cell, 'repeat', of_cell, 'shared', part.shared, 'state', 'queued' }
  local names = { 'tensor_id', 'sha256', 'initial', 'mask', 'mask_sha256', 'fixed', 'quota' }
  for at, value in ipairs(redis.call('HMGET', key('study', study), unpack(names))) do
    if value then
      table.insert(record, names[at])
      table.insert(record, value)
    end
  end
  return record, found[5]
end

-- Make a record of a run that has none.
local function record_run(study, place)
  local id, owner = run_id(study, place), study_field(study, 'owner')
  redis.call('RPUSH', key('runs', study), id)
  redis.call('HINCRBY', PLANNED, owner, -1)
  if unrecorded(study) == 0 then redis.call('ZREM', key('plans', owner), study) end
  create(id, planned_record(study, place))
  redis.call('HINCRBY', key('study', study), 'reserved', 0 - number(id, 'reserved')) -- the run has this reservation now
  redis.call('ZADD', QUEUED, study_field(study, 'created_at'), id)
end

local function record_next_run(study)
  while unrecorded(study) > 0 do
    local place = redis.call('HINCRBY', key('study', study), 'taken', 1) - 1
    if redis.call('EXISTS', key('job', run_id(study, place))) == 0 then return record_run(study, place) end
    redis.call('HINCRBY', key('study', study), 'ahead', -1)
  end
end

-- Make a record of a planned run before its turn, because its owner names it.
local function record_ahead(owner, id)
  if redis.call('EXISTS', key('job', id)) == 1 then return end
  local study, place = plan_of(id)
  if not study or study_field(study, 'owner') ~= owner or unrecorded(study) == 0 then return end
  redis.call('HINCRBY', key('study', study), 'ahead', 1)
  record_run(study, place)
end

-- Cancel all runs of a study that have no record.
local function cancel_plan(study)
  local left, record, owner = unrecorded(study), key('study', study), study_field(study, 'owner')
  if left == 0 then return end
  local plan = redis.call('HMGET', record, 'planned', 'taken', 'cells', 'repeats')
  local has_validation = tonumber(plan[1]) > plan[3] * plan[4]
  local validates = has_validation and redis.call('EXISTS', key('job', run_id(study, plan[1] - 1))) == 0
  local runs = validates and left - 1 or left
  redis.call('HSET', record, 'taken', plan[1], 'ahead', 0, 'cancelled_from', plan[2], 'cancelled_at', now(),
    'cancelled_unrecorded', runs)
  if validates then redis.call('HSET', record, 'validation', 'cancelled') end
  redis.call('HINCRBY', record, 'queued', 0 - runs)
  redis.call('HINCRBY', record, 'cancelled', runs)
  redis.call('HINCRBY', PLANNED, owner, -left)
  count_event('ended_cancelled', left)
  add_usage(owner, 'cancelled', runs)
  release_reserved(record, owner)
  if redis.call('HINCRBY', record, 'left', -left) == 0 then end_runs(study) end
end

-- Fields of an ended run that are kept as one value in a hash of its study. Redis packs what is left of its record, since
-- no value is long. Its request is that of the plan.
local LONG_FIELDS = { 'result', 'measures', 'resolved', 'progress', 'error' }

-- Compact the record of an ended run of a comparison.
local function compact(id)
  local study, place = plan_of(id)
  if not study or study_field(study, 'kind') ~= 'compare' or field(id, 'compact') == '1' then return end
  local long, record = {}, { 'compact', '1' }
  for at, value in ipairs(redis.call('HMGET', key('job', id), unpack(LONG_FIELDS))) do
    if value then long[LONG_FIELDS[at]] = value end
  end
  redis.call('HSET', key('rows', study), place, cmsgpack.pack(long))
  redis.call('HDEL', key('job', id), 'request', unpack(LONG_FIELDS))
  for _, part in ipairs(redis.call('HGETALL', key('job', id))) do table.insert(record, part) end
  redis.call('DEL', key('job', id)) -- a hash that once had a long value stays large
  redis.call('HSET', key('job', id), unpack(record))
end

-- Return the fields of a run that `compact` has taken out of its record, with its request; none for other jobs.
local function long_fields(id)
  local study, place = plan_of(id)
  if not study or field(id, 'compact') ~= '1' then return {} end
  local found = cmsgpack.unpack(redis.call('HGET', key('rows', study), place))
  found.request = planned_request(study, place)
  return found
end

local function dequeue(id)
  local owner, study = field(id, 'owner'), field(id, 'study_id')
  redis.call('ZREM', key('queue', owner), id)
  redis.call('ZREM', QUEUED, id)
  local taken = study and tonumber(study_field(study, 'taken'))
  if taken and run_id(study, taken - 1) == id then record_next_run(study) end
  if redis.call('ZCARD', key('queue', owner)) == 0 then redis.call('SREM', WAITING, owner) end
end

-- Return a job: its place in the queue, then names and values of its fields; nothing if there is none.
local function read(id, lengths)
  local fields = redis.call('HGETALL', key('job', id))
  local owner, score = field(id, 'owner'), nil
  if #fields > 0 then
    for name, value in pairs(long_fields(id)) do
      table.insert(fields, name)
      table.insert(fields, value)
    end
    score = redis.call('ZSCORE', key('queue', owner), id)
  else
    local study, place = plan_of(id)
    if not study then return end
    fields, owner = planned_record(study, place), study_field(study, 'owner')
    for _, part in ipairs({ 'id', id, 'attempt', 0, 'fence', 0, 'published', 0 }) do table.insert(fields, part) end
    local cancelled = redis.call('HMGET', key('study', study), 'cancelled_at', 'priority', 'base')
    if cancelled[1] then
      local at = { 'state', 'cancelled', 'cancel_requested', '1', 'finished_at', cancelled[1] }
      for _, part in ipairs(at) do table.insert(fields, part) end
    else
      score = queue_score(cancelled[2], cancelled[3] + place)
    end
  end
  local held = redis.call('HGET', key('share', owner), 'held')
  if held then
    table.insert(fields, 'held')
    table.insert(fields, held)
  end
  table.insert(fields, 1, position(owner, tonumber(score), lengths))
  return fields
end

local function finish(id, state, result, failure)
  dequeue(id)
  release_worker(id)
  leave(field(id, 'owner'))
  for _, users in ipairs(dependency_keys(id)) do redis.call('SREM', users, id) end
  mark_inputs_used(id)
  if result ~= '' then set(id, 'result', result) end
  if failure ~= '' then set(id, 'error', failure) end
  set(id, 'finished_at', now())
  count_event('ended_' .. state, 1)
  if field(id, 'task') ~= 'validate' then add_usage(field(id, 'owner'), state, 1) end
  redis.call('HINCRBYFLOAT', key('usage', field(id, 'owner')), 'seconds', computed_seconds(id))
  set_state(id, state)
  announce(id, 'end', '')
  if number(id, 'fence') == 0 then release_reserved(key('job', id), field(id, 'owner')) end -- it has stored nothing
  -- A run that never started has no history to store; thousands may be cancelled at once.
  local never_began = field(id, 'study_id') and number(id, 'fence') == 0
  if not never_began and field(id, 'settled') ~= '1' then redis.call('SADD', UNSETTLED, id) end
end

local function crash_error(how)
  return cjson.encode({
    kind = 'system',
    message = 'the job keeps dying without getting any further; the last time ' .. how,
    remedy = 'check the log and the memory of the worker, then submit the job again',
  })
end

-- Return a job whose attempt was killed from outside, or died with its worker, to the queue. Its owner is charged until
-- it died, by default until now.
local function requeue(id, died_at)
  if field(id, 'cancel_requested') == '1' then return finish(id, 'cancelled', '', '') end
  release_worker(id, died_at)
  enqueue(id)
end

-- Count a crash of a job, in thirds of a crash, and fail the job after too many without progress.
local function crash(id, how, max_crashes, long_seconds)
  local reached = math.max(number(id, 'published'), number(id, 'checkpoint_iteration'))
  local computed = computed_seconds(id) - number(id, 'claimed_spent')
  local stalls = reached > number(id, 'claimed_from') and 0 or number(id, 'stalls') + (computed < tonumber(long_seconds) and 3 or 1)
  set(id, 'stalls', stalls)
  if stalls >= 3 * max_crashes and field(id, 'cancel_requested') ~= '1' then
    return finish(id, 'failed', '', crash_error(how))
  end
  requeue(id)
end

-- Whether two requests with one key are the same: they have a digest in common, as in digest_of.
local function same_request(earlier, digests)
  for digest in string.gmatch(digests, '%S+') do
    if string.find(earlier, digest, 1, true) then return true end
  end
  return false
end

-- Return why a request is refused: a missing input or a limit. `named` is a list of kind, id and word.
-- `needed` are the bytes that the results may take.
local function refusal(owner, named, live, stored, live_runs, runs, needed)
  for _, one in ipairs(named) do
    local kind, id, word = unpack(one)
    if id ~= '' and redis.call('HGET', key(kind, id), 'owner') ~= owner then return { 'no ' .. word } end
  end
  if live ~= '' or live_runs ~= '' then
    local jobs, others = live_jobs(owner)
    if live ~= '' and jobs >= tonumber(live) then return { 'busy' } end
    if live_runs ~= '' and runs > 0 and others + runs > tonumber(live_runs) then return { 'many', others } end
  end
  local taken = stored_bytes(owner) + upload_bytes(owner)
  if stored ~= '' and (taken >= tonumber(stored) or taken + needed > tonumber(stored)) then return { 'full', taken } end
end

-- Start an attempt of a queued job; return the fields of its record, its labels, and the request of its study.
local function start_attempt(id, worker, lease, batch)
  local owner = field(id, 'owner')
  if not batch or redis.call('SCARD', key('batch', batch)) == 0 then occupy(owner, batch or id) end
  dequeue(id)
  redis.call('SADD', key('running', owner), id)
  redis.call('ZADD', LEASES, now() + lease, id)
  redis.call('HINCRBY', key('job', id), 'fence', 1)
  redis.call('HINCRBY', key('job', id), 'attempt', 1)
  redis.call('HSETNX', key('job', id), 'started_at', now())
  set(id, 'worker', worker, 'claimed_spent', computed_seconds(id), 'claimed_from',
    math.max(number(id, 'published'), number(id, 'checkpoint_iteration')))
  redis.call('HDEL', key('job', id), 'paused')
  if batch then
    set(id, 'batch', batch)
    redis.call('SADD', key('batch', batch), id)
  end
  set_state(id, 'running')
  local claim, axes, study = redis.call('HGETALL', key('job', id)), field(id, 'axes'), field(id, 'study_id')
  local function add(name, value)
    if value then
      table.insert(claim, name)
      table.insert(claim, value)
    end
  end
  if axes then add('labels', redis.call('GET', key('axes', axes))) end
  if study then
    add('reference_sha256', study_field(study, 'reference_sha256'))
    add('reference_mode', study_field(study, 'reference_mode'))
    if field(id, 'task') ~= 'run' then
      add('study_request', study_field(study, 'settings') or study_field(study, 'asked')) -- 'asked' before 0.1.0
      add('validation_results', study_field(study, 'checked'))
    end
  end
  return claim
end

-- Delete the record of a finished job. Its files are removed next.
local function delete_job(id)
  local owner, idempotency = field(id, 'owner'), field(id, 'key')
  if idempotency and redis.call('HGET', idempotency, 'job') == id then redis.call('DEL', idempotency) end
  if field(id, 'task') ~= 'validate' then add_usage(owner, field(id, 'state'), -1) end
  add_usage(owner, 'result_bytes', 0 - number(id, 'nbytes'))
  release_reserved(key('job', id), owner)
  redis.call('ZREM', key('jobs', owner), id)
  redis.call('HDEL', names_of('job', owner), id)
  redis.call('SREM', UNSETTLED, id)
  unlabel(key('job', id))
  redis.call('DEL', key('job', id), key('events', id))
  discard('job', id)
end
