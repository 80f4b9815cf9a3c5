-- What every script starts with. Rust puts it before the script itself.
--
-- KEYS[1]  where this call's answer is remembered for a while, so that a call that is repeated because
--          its answer was lost is answered again and not charged again
-- ARGV[1]  a msgpack array: [1] the instant after which nobody waits for the answer (0: none),
--          [2] for how many milliseconds the answer is remembered, [3] the call's id, [4..] what the script is about
-- result   a msgpack array: [1] 0, or 1 if the call came too late and did nothing,
--          [2] now, [3..] the script's answer
--
-- Instants and lengths of time are whole microseconds by this server's clock. Every number is below
-- 2^53, so that arithmetic in doubles is exact.

local MOST = 9007199254740991
-- A key outlives its counter by so many milliseconds: a clock that is set back a little, or the
-- somewhat slower one of a replica that takes over, brings nobody a new counter.
local SLACK = 10000

local args = cmsgpack.unpack(ARGV[1])

if args[2] > 0 then
  local answer = redis.call('GET', KEYS[1])
  if answer then return answer end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

if args[1] > 0 and now > args[1] then return cmsgpack.pack({1, now}) end

local out, out_n = {0, now}, 2

local function finish(changed)
  local answer = cmsgpack.pack(out)
  if changed and args[2] > 0 then redis.call('PSETEX', KEYS[1], args[2], answer) end
  return answer
end

-- How long a key lives whose counter is reset at `fresh_at`: milliseconds as text, because that is
-- what commands take, and writing numbers as text is slow. Whole seconds, so that a text is used
-- often.
local lifetimes = {}
local function lifetime(fresh_at)
  local seconds = math.max(math.ceil((fresh_at - now) / 1000000), 0)
  local text = lifetimes[seconds]
  if not text then
    text = string.format('%.0f', seconds * 1000 + SLACK)
    lifetimes[seconds] = text
  end
  return text
end
