// A real Chromium before the page of a running process, and a way to it that can be cut.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createRequire } from 'node:module';

const here = new URL('../../.browser/', import.meta.url);
export const require = createRequire(here);
const { chromium } = require('playwright-core');

const { ADMIN, PATH_OF_PAGE = '' } = process.env;
/** How long something may take that should happen soon. */
const SOON = 15000;

/**
 * A way to the admin address that can be cut, and that sees what the page asks. The page knows
 * only its address.
 */
class Way {
  #port = 0;
  #server = null;
  #ends = new Set();
  streams = 0;
  asked = [];
  acts = [];

  async open() {
    this.#server = net.createServer((near) => {
      const far = net.connect(+ADMIN.split(':').pop(), '127.0.0.1');
      let streams = false;
      near.on('data', (bytes) => {
        const line = bytes.toString('latin1').split('\r\n')[0];
        if (/^GET /.test(line)) this.asked.push(line);
        if (/^(POST|DELETE) /.test(line)) this.acts.push(line.split(' HTTP')[0]);
        if (line.startsWith('GET /v1/stream') && !streams) {
          streams = true;
          this.streams += 1;
        }
      });
      const end = () => {
        near.destroy();
        far.destroy();
        this.#ends.delete(end);
        if (streams) this.streams -= 1;
        streams = false;
      };
      this.#ends.add(end);
      for (const side of [near, far]) side.on('error', end).on('close', end);
      near.pipe(far).pipe(near);
    });
    await new Promise((done) => this.#server.listen(this.#port, '127.0.0.1', done));
    this.#port = this.#server.address().port;
  }

  async cut() {
    const closed = new Promise((done) => this.#server.close(done));
    for (const end of [...this.#ends]) end();
    await closed;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}/`;
  }
}

export async function until(what, is) {
  const end = Date.now() + SOON;
  while (!(await is())) {
    assert.ok(Date.now() < end, `not within ${SOON} ms: ${what}`);
    await new Promise((go) => setTimeout(go, 50));
  }
}

const CHROMIUM = '/usr/bin/chromium';
/** What must end before this program. */
const ends = [];
export const way = new Way();
await way.open();
export const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });

/**
 * A new tab with the page. What the console shows is a mistake, except that a request was refused,
 * and so is a request elsewhere.
 */
export async function open(of = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...of });
  const page = await context.newPage();
  page.setDefaultTimeout(SOON);
  const wrong = [];
  page.on('pageerror', (error) => wrong.push(String(error)));
  page.on('console', (it) => it.type() === 'error' && !/ERR_|401|404|409|503/.test(it.text()) && wrong.push(it.text()));
  page.on('request', (it) => !it.url().startsWith(way.url) && wrong.push(`asks ${it.url()}`));
  await page.goto(way.url + PATH_OF_PAGE);
  return { page, wrong, context };
}

/**
 * One window with two tabs. The driver makes every page believe that it is seen, except in a browser
 * that it did not start.
 */
export async function window_of_two() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tidegate-browser-'));
  const args = ['--headless=new', '--no-sandbox', '--remote-debugging-port=0', '--no-first-run', `--user-data-dir=${folder}`, 'about:blank'];
  const child = spawn(CHROMIUM, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  ends.push(async () => {
    const ended = new Promise((done) => child.once('exit', done));
    child.kill();
    await ended;
    fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  });
  let told = '';
  child.stderr.on('data', (bytes) => (told += bytes));
  await until('Chromium is up', () => /DevTools listening on (ws:\S+)/.test(told));
  const [, at] = /DevTools listening on (ws:\S+)/.exec(told);
  const connected = await chromium.connectOverCDP(at, { noDefaults: true });
  const context = connected.contexts()[0];
  const wrong = [];
  context.on('weberror', (it) => wrong.push(String(it.error())));
  await until('there is a tab', () => context.pages().length > 0);
  return { pages: [context.pages()[0], await context.newPage()], wrong };
}

export const is_live = (page) => page.waitForFunction(() => document.querySelector('#link').textContent === 'live');
export const text = (page, at) => page.locator(at).textContent();

/** Nothing that axe-core knows is wrong, and nothing is too wide. The page has axe-core. */
export async function has_no_fault(page, where) {
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
  const told = violations.map((it) => `${it.id}: ${it.help}: ${it.nodes[0].html}`);
  assert.deepEqual(told, [], where);
  assert.ok(passes.length > 10, where);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${where}: ${over} px too wide`);
}

/** The state of the backend, as the API has it. */
export const backend = async () => (await fetch(`${way.url}v1/backend`)).json();

/** Goes on by Tab until the element with this id has the focus. */
export async function tab_to(page, id) {
  for (let i = 0; i < 40; i += 1) {
    if ((await page.evaluate(() => document.activeElement.id)) === id) return;
    await page.keyboard.press('Tab');
  }
  assert.fail(`Tab never comes to ${id}`);
}

/** Types into the fields of a dialog, one after the other; null is a checkbox, and "" stays. */
export async function type(page, ...fields) {
  for (const [i, field] of fields.entries()) {
    if (i) await page.keyboard.press('Tab');
    if (field === null) await page.keyboard.press('Space');
    else if (field) {
      await page.keyboard.press('ControlOrMeta+A');
      await page.keyboard.type(field);
    }
  }
}

/** Ends what was started. */
export async function end() {
  await browser.close();
  for (const one of ends) await one();
}
