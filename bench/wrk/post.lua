-- POSTs one prepared body after the other, and says in one line how it went.
local requests = {}
local place = 0

function init(args)
  local headers = { ["Content-Type"] = "application/json" }
  for line in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("POST", nil, headers, line)
  end
end

function request()
  place = place % #requests + 1
  return requests[place]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    "result requests=%d micros=%d p50=%d p99=%d errors=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
