// Asks for one answer after the other with one client of Node.js, as wait.py does:
//   node wait.mjs fetch|http METHOD=URL...

import http from 'node:http';

const [library, ...asks] = process.argv.slice(2);
const LONGEST = 20000;
const bodyOf = (method) => (method === 'POST' ? '{"name":"box"}' : undefined);

async function byFetch(method, url, headers) {
  const reply = await fetch(url, { method, headers, body: bodyOf(method), signal: AbortSignal.timeout(LONGEST) });
  return { status: reply.status, body: await reply.text() };
}

function byHttp(method, url, headers) {
  return new Promise((done, failed) => {
    const request = http.request(url, { method, headers, agent: false, signal: AbortSignal.timeout(LONGEST) });
    request.on('error', failed);
    request.on('response', (reply) => {
      let body = '';
      reply.on('data', (bytes) => { body += bytes; });
      reply.on('error', failed);
      reply.on('end', () => done({ status: reply.statusCode, body }));
    });
    request.end(bodyOf(method));
  });
}

const ask = { fetch: byFetch, http: byHttp }[library];
for (const each of asks) {
  const at = each.indexOf('=');
  const headers = each[at - 1] === '!' ? { 'User-Agent': 'any' } : {};
  try {
    console.log(JSON.stringify(await ask(each.slice(0, at).replace('!', ''), each.slice(at + 1), headers)));
  } catch (error) {
    console.log(JSON.stringify({ error: `${error.name}: ${error.message} ${error.cause?.message ?? error.cause ?? ''}` }));
  }
}
process.exit(0);
