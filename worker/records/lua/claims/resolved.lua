-- id, fence, resolved -> whether it was kept: what settings came to that depend on the method or on the tensor
local id, fence, resolved = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
set(id, 'resolved', resolved)
return 1
