#!/usr/bin/env bash
# Rules of the house that no lint knows: which crate may know which, and that product files stay
# readable. Prints every breach, fails on any.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
breach() { echo "house rule broken: $*" >&2; failed=1; }

# A crate earns its place by what it must not depend on.
forbid() { # forbid CRATE DEPENDENCY... : CRATE must not have DEPENDENCY, directly or not
  local crate=$1 tree
  shift
  tree=$(cargo tree --locked -p "$crate" -e normal --prefix none 2>/dev/null | awk '{print $1}' | sort -u)
  for dependency in "$@"; do
    if grep -qx "$dependency" <<<"$tree"; then breach "$crate depends on $dependency"; fi
  done
}
forbid tollgate hyper axum rustls tonic redis sqlx jsonwebtoken
forbid tollgate-core tokio serde hyper axum tracing
forbid tollgate-policy tokio hyper axum tollgate-store
forbid tollgate-store tokio hyper axum tollgate-engine
forbid tollgate-engine hyper axum tollgate-server
forbid tollgate-tower tollgate-server tollgate-control sqlx
forbid tollgate-gateway tollgate-server tollgate-control sqlx
forbid tollgate-queue tollgate-gateway tollgate-server tollgate-control
forbid tollgate-client tollgate-engine tollgate-server
forbid tollgate-load hyper axum tollgate-engine tollgate-store tollgate-server
forbid tollgate-recording tokio hyper tollgate-engine tollgate-store tollgate-server
forbid tollgate-backtest hyper axum redis sqlx tollgate-server tollgate-control
forbid tollgate-control hyper axum redis tollgate-engine tollgate-server

# A product file is one idea.
while read -r lines file; do
  if [ "$lines" -gt 500 ]; then breach "$file has $lines lines; split it by idea"; fi
done < <(git ls-files 'crates/*/src/*.rs' 'crates/*/src/**/*.rs' | sort -u | xargs wc -l | grep -v ' total$')

exit "$failed"
