// Asks an HTTP service with a short time-out, many calls at once, with Node's fetch, and follows Retry-After:
//   node tickets.mjs PORT CALLS TIMEOUT
// Prints one line of JSON as tickets.py does.

const [port, calls, timeout] = process.argv.slice(2).map(Number);

async function ask(number) {
  for (let times = 0; times < 50; times += 1) {
    const reply = await fetch(`http://127.0.0.1:${port}/call/${number}`, { signal: AbortSignal.timeout(timeout * 1000) });
    await reply.arrayBuffer();
    if (reply.status === 200) return 'answered';
    await new Promise((done) => setTimeout(done, 1000 * Number(reply.headers.get('retry-after'))));
  }
  return 'refused';
}

const counts = {};
const ends = Array.from({ length: calls }, (_, number) => ask(number).catch((error) => error.name));
for (const end of await Promise.all(ends)) counts[end] = (counts[end] ?? 0) + 1;
console.log(JSON.stringify(counts));
