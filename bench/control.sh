#!/usr/bin/env bash
# The control plane at size: 10,000 rules and 1,000,000 clients' tiers in SQLite. Prints how long a start, a
# change and a page of a list take. Uses the release binary; takes a few minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${TOLLGATE_BINARY:-target/release/tollgate}
[ -x "$binary" ] || cargo build --locked --release --bin tollgate
rules=${CONTROL_RULES:-10000} clients=${CONTROL_CLIENTS:-1000000}
work=$(mktemp -d)
export TOLLGATE_ADMIN_TOKEN=tgt_0123456789abcdef0123456789abcdef
server='' took=''
start() {
  local began; began=$(date +%s%N)
  "$binary" serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --data-dir "$work/data" --log-level warn >"$work/out" 2>>"$work/log" &
  server=$!
  until grep -q listening "$work/out"; do sleep 0.005; done
  url=http://$(sed -n 's/^listening http=\([^ ]*\).*/\1/p' "$work/out")
  until curl -sf "$url/readyz" >/dev/null; do sleep 0.005; done
  took=$((($(date +%s%N) - began) / 1000000))
}
stop() { kill "$server"; wait "$server" 2>/dev/null || true; }
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
call() { curl -sf -H "Authorization: Bearer $TOLLGATE_ADMIN_TOKEN" "$@"; }
admin=/admin/api/v1/rate-limits
version() { curl -sf "$url/metrics" | sed -n 's/^rate_limiter_config_version{.*} //p'; }

start
call "$url$admin/tiers" -d '{"name": "free", "is_default": true}' >/dev/null
call "$url$admin/tiers" -d '{"name": "pro"}' >/dev/null
awk -v n="$rules" 'BEGIN { printf "{\"rules\":["
  for (i = 0; i < n; i++) printf "%s{\"rule_id\":\"rule-%05d\",\"scope\":\"S%d\",\"identifier_type\":\"user_id\",\"limit\":%d,\"window\":\"1m\",\"algorithm\":\"token_bucket\",\"tier_limits\":{\"pro\":%d},\"applies_to\":{\"endpoints\":[\"/api/r%d/*\"],\"methods\":[\"GET\",\"POST\"],\"tenants\":[\"t%d\"]}}", (i ? "," : ""), i, i % 50, 100 + i, 1000 + i, i, i % 1000
  printf "]}" }' >"$work/rules.json"
began=$(date +%s%N)
call "$url$admin/apply" -H 'content-type: application/json' --data-binary "@$work/rules.json" >/dev/null
echo "apply of $rules rules: $((($(date +%s%N) - began) / 1000000)) ms"
began=$(date +%s%N)
for ((part = 0; part < clients / 10000; part++)); do
  awk -v p="$part" 'BEGIN { srand(p); printf "{\"client_tiers\":["
    for (i = 0; i < 10000; i++) printf "%s{\"identifier_type\":\"user_id\",\"identifier\":\"user-%08x-%07d\",\"tier\":\"pro\"}", (i ? "," : ""), rand() * 4294967296, p * 10000 + i
    printf "]}" }' >"$work/part.json"
  call "$url$admin/client-tiers" --data-binary "@$work/part.json" >/dev/null
done
echo "$clients clients' tiers put: $((($(date +%s%N) - began) / 1000000)) ms"
before=$(version)
stop
start
echo "start with all of it, until ready: $took ms (rule set $(version) of $before in force, resident $(awk '/VmRSS/ {print int($2/1024)}' /proc/$server/status) MB)"
stop
rm -f "$work/data/rules.kept"
start
echo "start without the kept set, from the database alone: $took ms (rule set $(version) of $before in force)"
began=$(date +%s%N)
call "$url$admin/rules" -d '{"rule_id":"one-more","identifier_type":"user_id","limit":5,"window":"1m","applies_to":{"models":["m"]}}' >/dev/null
echo "one more rule, in force: $((($(date +%s%N) - began) / 1000000)) ms"
page() { # page NAME QUERY: the median and the worst of 20
  for _ in $(seq 20); do call -o /dev/null -w '%{time_total}\n' "$url$admin/$2"; done | sort -n |
    awk -v n="$1" '{t[NR] = $1 * 1000} END {printf "page of %s: p50 %.1f ms, most %.1f ms\n", n, t[int((NR + 1) / 2)], t[NR]}'
}
page "100 rules" 'rules?limit=100'
page "100 rules in the middle" 'rules?limit=100&cursor=rule-05000'
page "100 clients" 'client-tiers?limit=100'
page "100 clients of a tier" 'client-tiers?limit=100&tier=pro'
page "100 clients by prefix" 'client-tiers?limit=100&prefix=user_id%3Auser-8'
page "100 changes" 'audit?limit=100'
stop
