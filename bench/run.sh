#!/usr/bin/env bash
# Builds everything, runs every benchmark, prints the table, and rewrites it in docs/benchmarks.md.
#
#   BENCH_QUICK=1   everything small, in about three minutes: does it run? The document stays as it is.
#   BENCH_ONLY=…    only these, of: check decide audit allocations memory growth flood handler http start shared
#                   edge (separated by blanks). The document's large table stays as it is; the edge has a
#                   table of its own, which every full run of it rewrites. One more runs only when it is
#                   named: redis_clients, which starts a Redis cluster.
#
# All load stays on loopback. Servers are children of the benchmark that needs them: it stops them when
# it is done, and they die with it however it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=${BENCH_QUICK:-}
everything="check decide audit allocations memory growth flood handler http start shared edge"
only=${BENCH_ONLY:-$everything}

scratch=$(mktemp -d)
running=
clean_up() {
  if [[ -n $running ]]; then
    kill "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
  fi
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null && return
  echo "$1 is missing; installing it" >&2
  local as_root=
  [[ $(id -u) -eq 0 ]] || as_root=sudo
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq "$2"
}
# nginx lives where not everybody looks.
PATH=$PATH:/usr/sbin
need wrk wrk
if [[ " $only " == *" edge "* ]]; then
  need h2load nghttp2-client
  need nginx nginx-light
fi

cargo build --locked --release --bin tollgate
(cd bench && cargo build --locked --release)

tollgate=${CARGO_TARGET_DIR:-target}/release/tollgate
built=${CARGO_TARGET_DIR:-bench/target}/release
export BENCH_RESULTS=$scratch/results TMPDIR=$scratch

# No benchmark may take longer, in seconds.
patience=900
[[ -z $quick ]] || patience=120

failed=()
# Waits in the background, so that a signal is heard at once.
measure() {
  timeout "$patience" "$@" &
  running=$!
  local status=0
  wait "$running" || status=$?
  running=
  if ((status != 0)); then
    failed+=("${1##*/} ${2:-}")
    echo "FAILED with $status (124: it took more than $patience s): $*" >&2
  fi
}

version_of() {
  awk -v name="$1" '$1 == "name" && $3 == "\"" name "\"" { getline; gsub("\"", "", $3); print $3; exit }' bench/Cargo.lock
}

edge_peers=
if [[ " $only " == *" edge "* ]]; then
  edge_peers="; at the edge $(nginx -v 2>&1 | sed 's/.*: //'), h2load $(h2load --version | sed 's/.* //')"
fi
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
cat >"$scratch/facts" <<EOF
machine: $(nproc) cores, $(awk -F': *' '/model name/ { print $2; exit }' /proc/cpuinfo), $(awk '/MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo) GiB, Linux $(uname -r | cut -d- -f1)
date: $(date -u +%F), commit $commit
command: \`${quick:+BENCH_QUICK=1 }make bench\`
built with: $(rustc --version | cut -d' ' -f1,2), release profile, mimalloc for everyone
peers: governor $(version_of governor), throttlecrab $(version_of throttlecrab), limitador $(version_of limitador), axum $(version_of axum), hyper $(version_of hyper); load from $({ wrk -v 2>&1 || true; } | awk 'NR == 1 { print $1, $2 }')$edge_peers
load average before the run: $(cut -d' ' -f1 /proc/loadavg)
EOF

for name in $only; do
  case $name in
    check | decide | audit | growth | flood | handler) measure "$built/tollgate-bench" "$name" ;;
    http | start) measure "$built/tollgate-bench" "$name" --tollgate "$tollgate" ;;
    edge) BENCH_RESULTS=$scratch/edge measure "$built/tollgate-bench" edge --tollgate "$tollgate" ;;
    shared | redis_clients)
      scripts/install-test-deps.sh
      measure "$built/tollgate-bench" "$name"
      ;;
    allocations | memory) measure "$built/tollgate-count" "$name" ;;
    *)
      echo "there is no benchmark called $name; there are: $everything redis_clients" >&2
      exit 2
      ;;
  esac
done

report() { # report RESULTS SECTION [--docs FILE]
  [[ -f $1 ]] || return 0
  "$built/tollgate-bench" report --results "$1" --facts "$scratch/facts" --section "$2" "${@:3}"
}
docs=()
if [[ -z $quick && $only == "$everything" && ${#failed[@]} -eq 0 ]]; then
  docs=(--docs docs/benchmarks.md)
fi
report "$BENCH_RESULTS" bench "${docs[@]}"
edge_docs=()
if [[ -z $quick && ${#failed[@]} -eq 0 ]]; then
  edge_docs=(--docs docs/benchmarks.md)
fi
report "$scratch/edge" edge "${edge_docs[@]}"

if ((${#failed[@]} > 0)); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
