-- kind (job or tensor), owner, where to begin (a score as ZREVRANGEBYSCORE takes it), how many are wanted, how many to
-- examine, the fields they must have as JSON, and what their folded name must contain ('' for any) -> where to go on ('' at
-- the end), then id and sequence of each. Examines few: others wait.
local kind, owner, from, wanted, examined, fields, part = unpack(ARGV)
local filters = cjson.decode(fields)
local found = redis.call('ZREVRANGEBYSCORE', key(kind .. 's', owner), from, '-inf', 'WITHSCORES', 'LIMIT', 0, examined)

local names = {}
if part ~= '' and #found > 0 then
  local ids = {}
  for place = 1, #found, 2 do table.insert(ids, found[place]) end
  names = redis.call('HMGET', names_of(kind, owner), unpack(ids))
end

-- A study may have thousands of runs, so their names are in their requests only.
local function name_of_run(record)
  local request = redis.call('HGET', record, 'request')
  local name = request and cjson.decode(request).name
  return type(name) == 'string' and string.lower(name) or ''
end

local function matches(record, name)
  if part ~= '' and not string.find(name or name_of_run(record), part, 1, true) then return false end
  for field_name, value in pairs(filters) do
    if redis.call('HGET', record, field_name) ~= value then return false end
  end
  return true
end

local answer = { '' }
for place = 1, #found, 2 do
  if matches(key(kind, found[place]), names[(place + 1) / 2]) then
    table.insert(answer, found[place])
    table.insert(answer, found[place + 1])
  end
  if #answer > 2 * wanted then break end
end
if #found == 2 * examined then answer[1] = '(' .. found[#found] end
return answer
