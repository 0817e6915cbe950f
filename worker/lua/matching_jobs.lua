-- owner, where to begin (a score as ZREVRANGEBYSCORE takes it), how many are wanted, how many to look at, and the fields
-- they must have as JSON -> where to go on ('' at the end), then id and sequence of each. Looks at few: others wait.
local owner, from, wanted, looked, fields = unpack(ARGV)
local filters = cjson.decode(fields)
local found = redis.call('ZREVRANGEBYSCORE', key('jobs', owner), from, '-inf', 'WITHSCORES', 'LIMIT', 0, looked)
local answer = { '' }
for place = 1, #found, 2 do
  local id, matches = found[place], true
  for name, value in pairs(filters) do matches = matches and field(id, name) == value end
  if matches then
    table.insert(answer, id)
    table.insert(answer, found[place + 1])
  end
  if #answer > 2 * wanted then break end
end
if #found == 2 * looked then answer[1] = '(' .. found[#found] end
return answer
