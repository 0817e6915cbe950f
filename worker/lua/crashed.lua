-- id, fence, how: the process of this attempt died
local id, fence, how = unpack(ARGV)
if not holds(id, fence) then return 0 end
crash(id, how)
return 1
