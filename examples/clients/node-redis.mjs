// A lock and a limiter from node-redis.
import { randomUUID } from 'node:crypto';
import { createClient } from 'redis';

const url = `redis://localhost:${process.env.REDIS_PORT ?? 6379}`;
// A call that waits keeps the others of its connection waiting: this one is for the lock alone.
const client = await createClient({ url }).connect();
const token = randomUUID();

const fence = await client.sendCommand(['LOCK.ACQUIRE', 'order:42', token, '30s', 'BLOCK', '5s']);
if (fence === 0) {
  console.error('somebody else has the lock');
  process.exit(1);
}
try {
  console.log('locked, fencing token', fence);
  console.log('working');
  console.log('renewed:', await client.sendCommand(['LOCK.RENEW', 'order:42', token, '30s']));
} finally {
  console.log('released:', await client.sendCommand(['LOCK.RELEASE', 'order:42', token]));
}

for (const n of [1, 2, 3]) {
  const [allowed, limit, left, retryAfter] = await client.sendCommand(['RL.SLIDING', 'sms:alice', '2', '1m']);
  console.log(`try ${n}:`, allowed ? `allowed, ${left} left` : `refused, again in ${retryAfter} ms`);
}
await client.close();
