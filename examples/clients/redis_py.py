"""A lock and a limiter from redis-py."""

import os
import sys
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

port = int(os.environ.get("REDIS_PORT", "6379"))
client = redis.Redis(port=port, socket_timeout=30)  # longer than BLOCK
token = uuid.uuid4().hex

fence = client.execute_command("LOCK.ACQUIRE", "order:42", token, "30s", "BLOCK", "5s")
if not fence:
    sys.exit("somebody else has the lock")
try:
    print("locked, fencing token", fence)
    print("working")
    print("renewed:", client.execute_command("LOCK.RENEW", "order:42", token, "30s"))
finally:
    print("released:", client.execute_command("LOCK.RELEASE", "order:42", token))

# A limit counts each call it gets: this client never sends one again by itself.
limits = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
for n in (1, 2, 3):
    allowed, limit, left, retry_after, reset_after = limits.execute_command("RL.SLIDING", "sms:alice", 2, "1m")
    print(f"try {n}:", f"allowed, {left} left" if allowed else f"refused, again in {retry_after} ms")
