// Asks an HTTP service for everything in tests/it/real_clients.rs with one client of Node.js:
//   node drive.mjs fetch|http URL ONE_AT_A_TIME KEPT DIRECT
// Prints one line of JSON for each request, as drive.py does.

import http from 'node:http';

const [library, url, one, kept, direct] = process.argv.slice(2);
const LONGEST = 5000;
const pattern = (length) => Buffer.alloc(length, Buffer.from(Array.from({ length: 251 }, (_, i) => i)));

function summary(body) {
  if (body.length <= 200) return body.toString('latin1');
  return `${body.length} bytes ${body.equals(pattern(body.length)) ? 'as sent' : 'that are wrong'}`;
}

function* pieces(body) {
  for (let at = 0; at < body.length; at += 10000) yield body.subarray(at, at + 10000);
}

async function by_fetch(method, at, { body, chunked } = {}) {
  const all = chunked ? pieces(body) : null;
  const stream = chunked && new ReadableStream({
    pull(to) {
      const { value, done } = all.next();
      if (done) to.close();
      else to.enqueue(value);
    },
  });
  const more = { body: stream || body, duplex: chunked ? 'half' : undefined, redirect: 'manual' };
  const reply = await fetch(at, { method, signal: AbortSignal.timeout(LONGEST), ...more });
  return { status: reply.status, length: reply.headers.get('content-length'), body: Buffer.from(await reply.arrayBuffer()) };
}

const agent = new http.Agent({ keepAlive: true });

function by_http(method, at, { body, chunked, expect } = {}) {
  return new Promise((done, failed) => {
    const headers = {};
    if (expect) headers.Expect = '100-continue';
    if (body && !chunked) headers['Content-Length'] = body.length;
    const request = http.request(at, { method, headers, agent, signal: AbortSignal.timeout(LONGEST) });
    request.on('error', failed);
    request.on('response', (reply) => {
      const read = [];
      reply.on('data', (bytes) => read.push(bytes));
      reply.on('error', failed);
      reply.on('end', () => done({ status: reply.statusCode, length: reply.headers['content-length'], body: Buffer.concat(read) }));
    });
    const send = () => {
      for (const piece of chunked ? pieces(body) : body ? [body] : []) request.write(piece);
      request.end();
    };
    if (expect) {
      request.on('continue', send);
      request.flushHeaders();
    } else send();
  });
}

const ask = { fetch: by_fetch, http: by_http }[library];

async function observe(name, asking) {
  const began = Date.now();
  let seen;
  try {
    const { status, body } = await asking();
    seen = { status, body };
  } catch (error) {
    seen = { error: `${error.name}: ${error.message} ${error.cause?.code ?? error.cause ?? ''}` };
  }
  console.log(JSON.stringify({ name, ms: Date.now() - began, ...seen }));
}

const body_of = async (...all) => {
  const { status, body } = await ask(...all);
  return { status, body: summary(body) };
};
const statuses = (asked) => {
  const right = asked.filter(({ status, body }) => status === 200 && body.toString() === 'small');
  return { status: 200, body: `${right.length} of ${asked.length}` };
};

const upload = pattern(300000);
await observe('small', () => body_of('GET', `${url}/small`));
await observe('large', () => body_of('GET', `${url}/large`));
await observe('echo', () => body_of('POST', `${url}/echo`, { body: Buffer.from('{"name":"box","size":3}') }));
await observe('upload_length', () => body_of('POST', `${url}/upload`, { body: upload }));
await observe('upload_chunks', () => body_of('POST', `${url}/upload`, { body: upload, chunked: true }));
if (library === 'http') {
  await observe('upload_expect', () => body_of('POST', `${url}/upload`, { body: upload, expect: true }));
  await observe('refused_expect', () => body_of('POST', `${url}/refused`, { body: upload, expect: true }));
}
await observe('head', async () => {
  const { status, length, body } = await ask('HEAD', `${url}/large`);
  return { status, body: `${body.length} bytes of ${length}` };
});
await observe('none', () => body_of('GET', `${url}/none`));
await observe('chunked', () => body_of('GET', `${url}/chunked`));
await observe('closed', () => body_of('GET', `${url}/closed`));
for (const status of [302, 404, 500, 503]) await observe(`status_${status}`, () => body_of('GET', `${url}/status/${status}`));
await observe('waiting', async () => statuses(await Promise.all([1, 2, 3].map(() => ask('GET', `${one}/slow`)))));
for (const [name, at] of [['early', url], ['early_direct', direct]]) {
  for (let i = 0; i < 5; i += 1) await observe(name, () => body_of('POST', `${at}/early`, { body: pattern(20000000) }));
}
for (let i = 0; i < 3; i += 1) await observe('early_chunks', () => body_of('POST', `${url}/early`, { body: pattern(20000000), chunked: true }));
await observe('kept', async () => {
  const asked = [];
  for (let i = 0; i < 20; i += 1) asked.push(await ask('GET', `${kept}/small`));
  return statuses(asked);
});
process.exit(0);
