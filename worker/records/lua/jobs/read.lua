-- ids -> of each job that is there, what `read` gives: its place in the queue and its fields
local lengths, answer = queue_lengths(), {}
for _, id in ipairs(ARGV) do
  if redis.call('EXISTS', key('job', id)) == 1 then table.insert(answer, read(id, lengths)) end
end
return answer
