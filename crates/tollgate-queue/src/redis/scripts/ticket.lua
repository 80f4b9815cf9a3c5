-- id, how far to look for its position → what is known of it
return describe(ARGV[1], clock(), true, tonumber(ARGV[2]))
