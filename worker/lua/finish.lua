-- id, fence, state, result, error -> whether this claim ended the job. Asked twice, it answers the same.
local id, fence, state, result, failure = unpack(ARGV)
if field(id, 'ended_by') == fence then return 1 end
if not holds(id, fence) then return 0 end
set(id, 'ended_by', fence)
finish(id, state, result, failure)
return 1
