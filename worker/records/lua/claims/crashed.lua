-- id, fence, how, whether the job is at fault, crashes after which a job fails, seconds of a long attempt: the process of
-- this attempt died
local id, fence, how, is_own_fault, max_crashes, long_seconds = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
if is_own_fault == '1' then crash(id, how, max_crashes, long_seconds) else requeue(id) end
return 1
