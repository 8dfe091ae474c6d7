#!/bin/sh
# A lock and a limiter from a shell. In a pipe redis-cli prints values alone, and -e makes an error a failure.
set -eu
cli() { redis-cli -e -p "${REDIS_PORT:-6379}" "$@"; }

token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
fence=$(cli LOCK.ACQUIRE order:42 "$token" 30s BLOCK 5s)
[ "$fence" -gt 0 ] || { echo "somebody else has the lock" && exit 1; }
trap 'cli LOCK.RELEASE order:42 "$token" >/dev/null' EXIT # should the work fail
echo "locked, fencing token $fence"
echo "working"
echo "renewed: $(cli LOCK.RENEW order:42 "$token" 30s)"
echo "released: $(cli LOCK.RELEASE order:42 "$token")"
trap - EXIT

for try in 1 2 3; do
    reply=$(cli RL.SLIDING sms:alice 2 1m)
    # shellcheck disable=SC2086 # five numbers: allowed, limit, remaining, retry_after, reset_after
    set -- $reply
    if [ "$1" = 1 ]; then echo "try $try: allowed, $3 left"; else echo "try $try: refused, again in $4 ms"; fi
done
