#!/usr/bin/env bash
# A backtest at size: a log of a million lines against two rule sets, report and recommended limits included.
# Prints time and memory. Runs the library alone, which is built in a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked --release -p tollgate-backtest --example replay
binary=target/release/examples/replay
lines=${BACKTEST_LINES:-1000000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/generate-access-log.py --lines "$lines" --clients 20000 > "$work/access.log"
gzip -k "$work/access.log"
for log in access.log access.log.gz; do
  python3 - "$binary" "$work/$log" "$work/report.html" "$lines" <<'PY'
import resource, subprocess, sys, time
binary, log, html, lines = sys.argv[1:]
began = time.monotonic()
command = [binary, "examples/backtest/draft.yaml", "examples/backtest/current.yaml", log, html]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
name = log.rsplit("/", 1)[1]
print(f"{name}: {int(lines):,} lines in {time.monotonic() - began:.1f} s ({used.ru_utime:.1f} s of one core), "
      f"{used.ru_maxrss // 1024} MiB at most")
PY
done
