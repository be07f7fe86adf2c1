// Calls a service with Node's fetch and with its http module, in each form of a message. Prints `ok`, or what is wrong.
import http from 'node:http';

const base = process.argv[2];
const LARGE = 5 << 20;
const BODY = Buffer.alloc(300_000, 'b');

function expect(what, got, wanted) {
  if (got !== wanted) {
    console.log(`${what}: ${got} instead of ${wanted}`);
    process.exit(1);
  }
}

const text = async (path, options) => (await fetch(base + path, options)).text();
for (let turn = 0; turn < 20; turn += 1) expect('small', await text('/small'), 'hello');
for (const path of ['/large', '/chunks', '/close']) expect(path, (await text(path)).length, LARGE);
expect('HEAD', (await fetch(`${base}/large`, { method: 'HEAD' })).headers.get('content-length'), String(LARGE));
expect('204', (await fetch(`${base}/empty`)).status, 204);
expect('103', await text('/hints'), 'hello');
expect('upload', await text('/length', { method: 'POST', body: BODY }), String(BODY.length));
const stream = new ReadableStream({
  start(controller) {
    for (let at = 0; at < BODY.length; at += 50_000) controller.enqueue(BODY.subarray(at, at + 50_000));
    controller.close();
  },
});
expect('chunks up', await text('/length', { method: 'POST', body: stream, duplex: 'half' }), String(BODY.length));

const expected = await new Promise((resolve, reject) => {
  const headers = { Expect: '100-continue', 'Content-Length': BODY.length };
  const request = http.request(`${base}/length`, { method: 'POST', headers }, (reply) => {
    let body = '';
    reply.on('data', (part) => { body += part; });
    reply.on('end', () => resolve(body));
  });
  request.on('continue', () => request.end(BODY));
  request.on('error', reject);
  request.flushHeaders();
});
expect('expected', expected, String(BODY.length));
console.log('ok');
