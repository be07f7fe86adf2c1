// A page that Tidegate serves opens a WebSocket through it, in a real Chromium: `node socket.mjs SERVER`. ORIGIN is the address of
// Tidegate, SERVER that of tests/peers/websocket/server.py behind it. tests/it/real_websocket.rs starts it.

import assert from 'node:assert/strict';

import { browser, end, until } from './browser.mjs';

const { ORIGIN, SERVER } = process.env;
const state = async () => (await fetch(`${SERVER}/state`)).json();

async function open() {
  const page = await (await browser.newContext()).newPage();
  const wrong = [];
  page.on('pageerror', (error) => wrong.push(String(error)));
  await page.goto(`${ORIGIN}/page`);
  return { page, wrong };
}

/** Opens a socket in a page and tries both kinds of message. */
async function talk(page) {
  const came = await page.evaluate(async () => {
    const socket = new WebSocket(`ws://${location.host}/echo`);
    globalThis.socket = socket;
    socket.binaryType = 'arraybuffer';
    await new Promise((done, failed) => Object.assign(socket, { onopen: done, onerror: () => failed(new Error('no socket')) }));
    const echo = (message) => new Promise((done) => {
      socket.onmessage = ({ data }) => done(data);
      socket.send(message);
    });
    const large = 'y'.repeat(1000000);
    const bytes = new Uint8Array(await echo(new Uint8Array([0, 1, 255])));
    return { text: await echo('Zoë ✓'), bytes: [...bytes], large: (await echo(large)) === large, extensions: socket.extensions };
  });
  assert.deepEqual(came, { text: 'Zoë ✓', bytes: [0, 1, 255], large: true, extensions: came.extensions });
  assert.match(came.extensions, /^permessage-deflate/);
}

const first = await open();
await talk(first.page);
assert.equal((await state()).open, 1);
const code = await first.page.evaluate(() => new Promise((done) => {
  socket.onclose = (it) => done([it.code, it.wasClean]);
  socket.close(3001, 'done');
}));
assert.deepEqual(code, [3001, true]);
await until('the server sees the close', async () => (await state()).open === 0);
assert.deepEqual((await state()).ended.map((it) => [it.code, it.why]), [[3001, 'done']]);

// The end of a tab is the end of its socket.
const second = await open();
await talk(second.page);
const began = Date.now();
await second.page.close();
await until('the server sees the end of the tab', async () => (await state()).open === 0);
const took = Date.now() - began;
assert.ok(took < 1000, `the server saw the end of the tab after ${took} ms`);
console.log(`a closed tab: ${took} ms, code ${(await state()).ended[1].code}`);
assert.deepEqual([...first.wrong, ...second.wrong], []);
await end();
process.exit(0);
