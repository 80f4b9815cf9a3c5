#!/usr/bin/env bash
# What the tests need beside Rust: curl, which the documentation's examples are run with; Redis and its tools,
# of which tests start servers of their own, as they do of PostgreSQL; faketime, for tests of clocks that are
# wrong.
set -euo pipefail

missing=()
need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null || missing+=("$2")
}
need curl curl
need redis-server redis-server
need redis-sentinel redis-sentinel
need redis-cli redis-tools
need redis-benchmark redis-tools
need faketime faketime
need psql postgresql
# Debian keeps the server's programs off the path.
server=(/usr/lib/postgresql/*/bin/postgres)
if [ ! -x "${server[0]}" ]; then need postgres postgresql; fi
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if ! command -v apt-get >/dev/null; then
  echo "the tests need ${missing[*]}; install them with your system's package manager" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get update -qq
# The tests' servers are children of the tests. Services that come with the packages are not wanted: RUNLEVEL=1
# keeps init scripts from starting them; systemd does not look at it, so there they are stopped afterwards.
"${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
if [ -d /run/systemd/system ]; then
  for package in "${missing[@]}"; do
    case $package in
      redis-server | redis-sentinel | postgresql) "${as_root[@]}" systemctl --quiet disable --now "$package" ;;
    esac
  done
fi
