#!/usr/bin/env bash
# Takes the API's description from the binary that was just built; the console's types are made of it. A test of the
# console fails when the two differ.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${CARGO_TARGET_DIR:-target}/debug/tollgate
folder=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkfifo "$folder/out"
"$binary" serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --data-dir "$folder/data" >"$folder/out" 2>/dev/null &
server=$!
read -r line <"$folder/out"
address=$(sed -E 's/.*http=([^ ]+).*/\1/' <<<"$line")
curl -s "http://$address/openapi.json" >console/openapi.json
