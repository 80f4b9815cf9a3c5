-- Makes a rule set the one that nodes read, if it is newer and all its parts are there. Parts are named by
-- their content and stored before the manifest; so a reader of a manifest finds the parts that it
-- names, or that they have been removed since, but never other content.
--
-- KEYS[1]     the set: installation, revision, manifest, and parts by their names
-- ARGV        [1] the installation, [2] the revision, decimal and not negative, [3] 1: another
--             installation's set may be replaced, [4] the manifest, [5] the channel, [6] how many parts the
--             writer can send, [7] how many it relies upon; then the names of those that it can send, of
--             those that it relies upon, and of those that may go
-- result      {'written'}; {'there'}: this very set; {'older', revision}; {'other', installation,
--             revision}; {'all'}: a part that is relied upon is missing; {'send', index, ...}: these parts
--             are missing, counted from 0. Only the first has changed anything.

local FIRST_NAME = 8
local key, installation, revision, manifest = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local sendable, named = tonumber(ARGV[6]), ARGV[6] + ARGV[7]

-- Numbers of Lua are exact to 2^53 only.
local function is_greater(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

local is_same = false
local old = redis.call('HMGET', key, 'installation', 'revision')
if old[1] and old[2] then
  if old[1] ~= installation then
    if ARGV[3] ~= '1' then return {'other', old[1], old[2]} end
  elseif old[2] == revision then
    is_same = redis.call('HGET', key, 'manifest') == manifest
    if not is_same then return {'older', old[2]} end
  elseif not is_greater(revision, old[2]) then
    return {'older', old[2]}
  end
end

local is_named, answer = {}, {'send'}
for i = 0, named - 1 do
  local name = ARGV[FIRST_NAME + i]
  is_named[name] = true
  if redis.call('HEXISTS', key, name) == 0 then
    if i >= sendable then return {'all'} end
    answer[#answer + 1] = i
  end
end
if #answer > 1 then return answer end
if is_same then return {'there'} end

redis.call('HSET', key, 'installation', installation, 'revision', revision, 'manifest', manifest)
for i = FIRST_NAME + named, #ARGV do
  if not is_named[ARGV[i]] then redis.call('HDEL', key, ARGV[i]) end
end
-- A user who may not publish may still write: nodes look for themselves, too.
redis.pcall('PUBLISH', ARGV[5], revision)
return {'written'}
