-- id, fence, state, result, error, measures -> whether this claim ended the job. Asked twice, it answers the same.
local id, fence, state, result, failure, measures = unpack(ARGV)
if field(id, 'ended_by') == fence then return 1 end
if not holds_claim(id, fence) then return 0 end
set(id, 'ended_by', fence)
if measures ~= '' then set(id, 'measures', measures) end
finish(id, state, result, failure)
return 1
