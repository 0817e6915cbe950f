-- id, fence, how, whether by itself: the process of this attempt died
local id, fence, how, is_own_fault = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
if is_own_fault == '1' then crash(id, how) else requeue(id) end
return 1
