#!lua flags=no-writes
-- kind (job or tensor), owner, where to begin (a score as ZREVRANGEBYSCORE takes it), how many are wanted, how many to
-- examine, the fields they must have as JSON, and what their folded name must contain ('' for any) -> where to go on ('' at
-- the end), then id and sequence of each. Examines few: others wait.
local kind, owner, from, wanted, examined, fields, part = unpack(ARGV)
examined = tonumber(examined)
local filters = cjson.decode(fields)
local found = {} -- sequence, id, and study and place of a run that has no record
local recorded = redis.call('ZREVRANGEBYSCORE', key(kind .. 's', owner), from, '-inf', 'WITHSCORES', 'LIMIT', 0, examined)
for at = 1, #recorded, 2 do table.insert(found, { tonumber(recorded[at + 1]), recorded[at] }) end

if kind == 'job' then
  local latest, planned = from == '+inf' and math.huge or tonumber(string.sub(from, 2)) - 1, 0
  local plans = redis.call('ZREVRANGEBYSCORE', key('plans', owner), from, '-inf', 'LIMIT', 0, examined)
  for _, study in ipairs(plans) do
    local plan = redis.call('HMGET', key('study', study), 'base', 'cells', 'repeats', 'taken', 'cancelled_from')
    local base, first = tonumber(plan[1]), tonumber(plan[5] or plan[4])
    for place = math.min(latest - base, plan[2] * plan[3] - 1), first, -1 do
      if planned == examined then break end
      local id = run_id(study, place)
      if redis.call('EXISTS', key('job', id)) == 0 then
        planned = planned + 1
        table.insert(found, { base + place, id, study, place })
      end
    end
  end
  table.sort(found, function(one, other) return one[1] > other[1] end)
end
local count = math.min(#found, examined)

local names = {}
if part ~= '' and count > 0 then
  local ids = {}
  for at = 1, count do table.insert(ids, found[at][2]) end
  names = redis.call('HMGET', names_of(kind, owner), unpack(ids))
end

-- A study may have thousands of runs, so their names are in their requests only.
local function name_of_run(id, study, place)
  local request = study and planned_request(study, place) or field(id, 'request') or long_fields(id).request
  local name = request and cjson.decode(request).name
  return type(name) == 'string' and string.lower(name) or ''
end

local function value_of(name, id, study, place)
  if not study then return redis.call('HGET', key(kind, id), name) end
  if name == 'study_id' then return study end
  if name == 'state' then return study_field(study, 'cancelled_at') and 'cancelled' or 'queued' end
  if name == 'method' then return planned_cell(study, place).method end
  return study_field(study, name)
end

local function matches(name, id, study, place)
  if part ~= '' and not string.find(name or name_of_run(id, study, place), part, 1, true) then return false end
  for field_name, value in pairs(filters) do
    if value_of(field_name, id, study, place) ~= value then return false end
  end
  return true
end

local answer, sequence = { '' }, nil
for at = 1, count do
  local id, study, place
  sequence, id, study, place = unpack(found[at], 1, 4)
  sequence = string.format('%.0f', sequence)
  if matches(names[at], id, study, place) then
    table.insert(answer, id)
    table.insert(answer, sequence)
  end
  if #answer > 2 * wanted then break end
end
if count == examined then answer[1] = '(' .. sequence end
return answer
