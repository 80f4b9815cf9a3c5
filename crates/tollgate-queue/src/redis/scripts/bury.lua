-- id, token, why → whether the claim held
local id = ARGV[1]
local lane, place = claimed(id, ARGV[2])
if not lane then return 0 end
local at = clock()
bury(id, lane, place, ARGV[3], at)
lane_due(lane, at)
return 1
