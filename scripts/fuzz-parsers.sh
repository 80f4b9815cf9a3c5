#!/usr/bin/env bash
# Feeds every parser that reads bytes from outside with whatever breaks parsers: cargo-fuzz over fuzz/targets, two
# targets at a time. Prints executions and the result of each, and fails if any finds a crash; the input that does it
# is then under fuzz/artifacts.
#
#   scripts/fuzz-parsers.sh [SECONDS per target, default 600] [TARGET…]
#
# Four at a time: FUZZ_TOGETHER=4 scripts/fuzz-parsers.sh. What a run learns is kept under fuzz/corpus, and the next one goes on from there.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
if ! [[ $seconds =~ ^[0-9]+$ ]] || ((seconds == 0)); then
  echo "usage: scripts/fuzz-parsers.sh [SECONDS] [TARGET…]" >&2
  exit 2
fi
shift || true

# One input must not take longer, in seconds, nor the process grow beyond this, in MB.
patience=25
most_memory=4096
# How many run at the same time.
together=${FUZZ_TOGETHER:-2}
cargo=${CARGO:-cargo}

command -v cargo-fuzz >/dev/null || "$cargo" install --locked cargo-fuzz@0.13.2

# Sanitizers are unstable; this lets the toolchain that builds the product build them, too.
export RUSTC_BOOTSTRAP=1
"$cargo" fuzz build --fuzz-dir fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
built=fuzz/target/$host/release
read -ra targets <<<"${*:-$("$cargo" fuzz list --fuzz-dir fuzz | tr '\n' ' ')}"

scratch=$(mktemp -d)
running=()
clean_up() {
  for one in "${running[@]}"; do kill "$one" 2>/dev/null || true; done
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Starts a target in the background; its log is in the scratch directory.
start() { # start TARGET
  local target=$1 seeds=() words=()
  mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
  [[ ! -d fuzz/seeds/$target ]] || seeds=("fuzz/seeds/$target")
  [[ ! -f fuzz/seeds/$target.dict ]] || words=("-dict=fuzz/seeds/$target.dict")
  ASAN_OPTIONS=detect_odr_violation=0 "$built/$target" "fuzz/corpus/$target" "${seeds[@]}" "${words[@]}" \
    -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -timeout="$patience" \
    -rss_limit_mb="$most_memory" -print_final_stats=1 >"$scratch/$target.log" 2>&1 &
  running+=("$!")
}

failed=()
report() { # report TARGET STATUS
  local target=$1 status=$2 executions
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/$target.log")
  if [[ $status == 0 ]]; then
    printf '%-14s %12s executions  no crash\n' "$target" "${executions:-?}"
  else
    printf '%-14s %12s executions  FAILED with %s\n' "$target" "${executions:-?}" "$status"
    tail -n 40 "$scratch/$target.log"
    failed+=("$target")
  fi
}

for ((place = 0; place < ${#targets[@]}; place += together)); do
  now=("${targets[@]:place:together}")
  running=()
  for target in "${now[@]}"; do start "$target"; done
  for index in "${!now[@]}"; do
    status=0
    wait "${running[index]}" || status=$?
    report "${now[index]}" "$status"
  done
  running=()
done

if ((${#failed[@]} > 0)); then
  echo "crashes in: ${failed[*]}; inputs are under fuzz/artifacts" >&2
  exit 1
fi
