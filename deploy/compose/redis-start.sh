#!/bin/sh
# Starts Redis with the password of a file. Redis reads it from standard input, because other users can see arguments.
set -eu

password=$(cat "${PASSWORD_FILE:-/run/secrets/redis_password}")
exec redis-server "${CONFIG_FILE:-/etc/redis.conf}" - <<END
requirepass $password
masterauth $password
END
