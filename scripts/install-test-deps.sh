#!/usr/bin/env bash
# What the tests need beside Rust: curl, which the documentation's examples are run with.
set -euo pipefail

missing=()
command -v curl >/dev/null || missing+=(curl)
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if ! command -v apt-get >/dev/null; then
  echo "the tests need ${missing[*]}; install it with your system's package manager" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
