#!/bin/sh
# Makes a Redis Cluster of the servers named in NODES, each master with a replica, unless they are one already; returns
# when every slot is served.
set -eu

REDISCLI_AUTH=$(cat "${PASSWORD_FILE:-/run/secrets/redis_password}")
export REDISCLI_AUTH
first=${NODES%% *}
host=${first%:*}
port=${first##*:}

is_served() {
  redis-cli -h "$host" -p "$port" cluster info | grep -q '^cluster_slots_ok:16384'
}

if ! is_served; then
  # shellcheck disable=SC2086 # a list of words
  redis-cli --cluster create $NODES --cluster-replicas 1 --cluster-yes
fi

attempts=60
until is_served; do
  attempts=$((attempts - 1))
  if [ "$attempts" -eq 0 ]; then
    echo "the slots are not served" >&2
    exit 1
  fi
  sleep 1
done
echo "the cluster is there"
