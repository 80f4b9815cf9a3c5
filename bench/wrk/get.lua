-- Asks the same again and again, and says in one line how it went.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    "result requests=%d micros=%d p50=%d p99=%d errors=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
