// A lock and a limiter from ioredis.
import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';

const port = Number(process.env.REDIS_PORT ?? 6379);
// A call that waits keeps the others of its connection waiting: this one is for the lock alone.
const client = new Redis({ port });
const token = randomUUID();

const fence = await client.call('LOCK.ACQUIRE', 'order:42', token, '30s', 'BLOCK', '5s');
if (fence === 0) {
  console.error('somebody else has the lock');
  process.exit(1);
}
try {
  console.log('locked, fencing token', fence);
  console.log('working');
  console.log('renewed:', await client.call('LOCK.RENEW', 'order:42', token, '30s'));
} finally {
  console.log('released:', await client.call('LOCK.RELEASE', 'order:42', token));
}

// A limit counts each call it gets: this client never sends one again by itself.
const limits = new Redis({ port, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 });
for (const n of [1, 2, 3]) {
  const [allowed, limit, left, retryAfter] = await limits.call('RL.SLIDING', 'sms:alice', 2, '1m');
  console.log(`try ${n}:`, allowed ? `allowed, ${left} left` : `refused, again in ${retryAfter} ms`);
}
client.disconnect();
limits.disconnect();
