-- What is known of an entry: nil, or state, lane, label, enqueued, attempts, due, finished, error,
-- position, response, with '' for what is not known. Positions are looked for among the first so many.
local function describe(id, at, with_response, look)
  local e = redis.call('HMGET', entry_key(id), 'state', 'lane', 'label', 'enqueued', 'attempts', 'place',
    'finished', 'error')
  local state, lane = e[1], e[2]
  if not state then return nil end
  local due, position = '', ''
  if state == 'waiting' then
    state = is_held(id, lane, at) and 'sending' or 'queued'
    if look > 0 then
      local before = redis.call('XRANGE', lane_key(lane), '-', '(' .. e[6], 'COUNT', look)
      if #before < look then position = #before end
    end
    if state == 'queued' and position == 0 then due = redis.call('ZSCORE', due_key, lane) or '' end
  end
  local response = with_response and redis.call('HGET', entry_key(id), 'response') or ''
  return {state, lane, e[3], e[4], e[5], due, e[7] or '', e[8] or '', position, response}
end
