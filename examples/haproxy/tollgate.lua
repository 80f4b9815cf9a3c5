-- The action lua.tollgate: asks Tollgate whether a request may pass.
--
-- Refused: the client gets Tollgate's own answer, 429 or 403 with headers and body. Allowed: the headers that say
-- what is left are kept in variables of the transaction. No answer, or none in time: the request goes on.

-- Above the limits of the backend in haproxy.cfg, in milliseconds: those decide.
local TIMEOUT_MS = 5000

-- The longest value that Tollgate takes. What is longer must not make the question too large to be sent: a client
-- could then do without limits.
local VALUE_BYTES = 256

-- What of an answer that lets a request pass is kept, and in which variable.
local KEPT = {
    ["x-ratelimit-limit"] = "txn.tollgate_limit",
    ["x-ratelimit-remaining"] = "txn.tollgate_remaining",
    ["x-ratelimit-reset"] = "txn.tollgate_reset",
    ["x-ratelimit-policy"] = "txn.tollgate_policy",
}

-- What of a refusal the client does not get: what belongs to the connection with Tollgate.
local NOT_PASSED_ON = {
    ["connection"] = true,
    ["content-length"] = true,
    ["date"] = true,
    ["keep-alive"] = true,
    ["transfer-encoding"] = true,
    ["x-tollgate-answered"] = true,
}

-- Nothing of the client's headers goes to Tollgate but what is named here.
local function question(txn)
    local headers = {
        ["x-tollgate-ip"] = { txn.sf:src() },
        ["x-tollgate-endpoint"] = { txn.sf:pathq() },
        ["x-tollgate-method"] = { txn.sf:method() },
    }
    local key = txn.sf:req_fhdr("x-api-key")
    if key ~= "" then
        -- One byte above the bound is enough for Tollgate to refuse it.
        headers["x-tollgate-api-key"] = { string.sub(key, 1, VALUE_BYTES + 1) }
    end
    local accept = txn.sf:req_fhdr("accept")
    if accept ~= "" and #accept <= VALUE_BYTES then
        headers["accept"] = { accept }
    end
    -- With data_auth: token:
    -- headers["authorization"] = { "Bearer ..." }
    return headers
end

local function refuse(txn, answer)
    local reply = txn:reply({ status = answer.status, reason = answer.reason })
    for name, values in pairs(answer.headers) do
        if not NOT_PASSED_ON[name] then
            for _, value in pairs(values) do
                reply:add_header(name, value)
            end
        end
    end
    reply:set_body(answer.body or "")
    txn:done(reply)
end

core.register_action("tollgate", { "http-req" }, function(txn, socket)
    local answer = core.httpclient():get({
        url = "http://tollgate/rate-limit/auth",
        dst = socket,
        headers = question(txn),
        timeout = TIMEOUT_MS,
    })
    if not answer or not answer.headers or not answer.headers["x-tollgate-answered"] then
        txn:Warning("Tollgate does not answer: a request goes on without limits")
        return
    end
    local status = answer.status
    if status >= 200 and status < 300 then
        for name, variable in pairs(KEPT) do
            local values = answer.headers[name]
            if values then
                txn:set_var(variable, values[0])
            end
        end
        return
    end
    refuse(txn, answer)
end, 1)
