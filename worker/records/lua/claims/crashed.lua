-- id, fence, how, whether by itself: the process of this attempt died
local id, fence, how, by_itself = unpack(ARGV)
if not holds(id, fence) then return 0 end
if by_itself == '1' then crash(id, how) else requeue(id) end
return 1
