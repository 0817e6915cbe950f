-- upload, owner, bytes wanted, bytes wanted if there is much room, bytes written, stored limit, room on the disk,
-- milliseconds -> granted and how many; quota and what is stored or reserved; disk
-- Not written to the disk, as request tokens: what an upload holds ends with it.
redis.set_repl(redis.REPL_NONE)
local upload, owner, wanted, ahead, written, limit, room, keep = unpack(ARGV)
local stored, unwritten = stored_bytes(owner), 0
local running = redis.call('HGETALL', UPLOADS)
for place = 1, #running, 2 do
  local other = cjson.decode(running[place + 1])
  if other.expires < now() then
    redis.call('HDEL', UPLOADS, running[place]) -- its API died
  elseif running[place] ~= upload then
    unwritten = unwritten + other.reserved - other.written
    if other.owner == owner then stored = stored + other.reserved end
  end
end
for _, nbytes in ipairs({ tonumber(ahead), tonumber(wanted) }) do
  local within_quota = limit == '' or stored + nbytes <= tonumber(limit)
  if within_quota and unwritten + nbytes - written <= tonumber(room) then
    local held = { owner = owner, reserved = nbytes, written = tonumber(written), expires = now() + keep }
    redis.call('HSET', UPLOADS, upload, cjson.encode(held))
    return { 'granted', nbytes }
  end
end
if limit ~= '' and stored + wanted > tonumber(limit) then return { 'quota', stored } end
return { 'disk' }
