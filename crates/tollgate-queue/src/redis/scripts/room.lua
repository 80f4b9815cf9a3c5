-- lane, most waiting, most of a lane, tenant, bytes, most bytes of a lane, of a tenant and of all → whether there is
-- room, or what there is too much of
local refused = no_room(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]),
  {ARGV[6], ARGV[7], ARGV[8]})
return refused or {'accepted', 0}
