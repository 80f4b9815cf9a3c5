#!/usr/bin/env bash
# Sends the API whatever its description allows, and what it does not: no answer may be a 5xx, have a status
# or a form that /openapi.json does not name. Needs Python and its package index; FUZZ_EXAMPLES says how
# much per call.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${TOLLGATE_BINARY:-target/debug/tollgate}
[ -x "$binary" ] || cargo build --locked --bin tollgate
venv=target/fuzz-venv
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" -q install schemathesis==4.32.5; }

work=$(mktemp -d)
export TOLLGATE_ADMIN_TOKEN=tgt_0123456789abcdef0123456789abcdef
# Wrong tokens are part of what is sent.
TOLLGATE_ADMIN_WRONG_TOKENS=1000000 "$binary" serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --data-dir "$work/data" --log-level warn \
  >"$work/out" 2>"$work/log" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$work"' EXIT
for _ in $(seq 100); do grep -q listening "$work/out" && break; sleep 0.1; done
url=http://$(sed -n 's/^listening http=\([^ ]*\).*/\1/p' "$work/out")

# Streams do not end, so nobody can wait for them.
schemathesis=$PWD/$venv/bin/schemathesis
# It leaves files where it runs.
cd "$work"
"$schemathesis" run "$url/openapi.json" --url "$url" \
  -H "Authorization: Bearer $TOLLGATE_ADMIN_TOKEN" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path /admin/api/v1/rate-limits/events \
  --phases examples,coverage,fuzzing --max-examples "${FUZZ_EXAMPLES:-50}" --warnings off --continue-on-failure
if grep -i panicked "$work/log"; then echo "the server panicked" >&2; exit 1; fi
