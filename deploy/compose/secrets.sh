#!/usr/bin/env bash
# Makes what the compose file needs and nobody may know: passwords and tokens, each of 256 random bits. What is there
# already stays.
set -euo pipefail
cd "${1:-$(dirname "$0")}"

# The folder keeps others of this machine out. The files themselves have to be readable for the users of the
# containers, into which they are mounted one by one.
mkdir -p -m 700 secrets
for name in data_token admin_token api_key_secret redis_password postgres_password grafana_password; do
  if [ ! -s "secrets/$name" ]; then
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"secrets/$name"
    chmod 444 "secrets/$name"
  fi
done

# What Compose takes from its environment.
(
  umask 077
  printf 'TOLLGATE_ADMIN_TOKEN=%s\nTOLLGATE_DATA_TOKEN=%s\n' "$(cat secrets/admin_token)" "$(cat secrets/data_token)" >.env
)
echo "made, in $PWD: secrets/ and .env"
