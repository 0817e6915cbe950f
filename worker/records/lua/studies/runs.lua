#!lua flags=no-writes
-- id, where to begin, how many, names of fields -> of each run with a record: its id and its fields, false for those it has not
local id, from, many = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local answer = {}
for _, run in ipairs(redis.call('LRANGE', key('runs', id), from, from + many - 1)) do
  local row, long = { run }, long_fields(run)
  for at, value in ipairs(redis.call('HMGET', key('job', run), unpack(ARGV, 4))) do row[at + 1] = value or long[ARGV[at + 3]] or false end
  table.insert(answer, row)
end
return answer
