// Opens the page of a running sidecar in a real Chromium and tries one thing: `node page.mjs WHAT`.
// ADMIN is its admin address. Exits with 0, or says what is wrong. tests/it/browser.rs starts it.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import { createRequire } from 'node:module';

const here = new URL('../../.browser/', import.meta.url);
const require = createRequire(here);
const { chromium } = require('playwright-core');

const { ADMIN, TOKEN, PICTURES, CALLER } = process.env;
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

  async open() {
    this.#server = net.createServer((near) => {
      const far = net.connect(+ADMIN.split(':').pop(), '127.0.0.1');
      let streams = false;
      near.on('data', (bytes) => {
        const line = bytes.toString('latin1').split('\r\n')[0];
        if (/^GET /.test(line)) this.asked.push(line);
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

async function until(what, is) {
  const end = Date.now() + SOON;
  while (!(await is())) {
    assert.ok(Date.now() < end, `not within ${SOON} ms: ${what}`);
    await new Promise((go) => setTimeout(go, 50));
  }
}

const way = new Way();
await way.open();
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });

/**
 * A new tab with the page. What the console shows is a mistake, except that a request was refused,
 * and so is a request elsewhere.
 */
async function open(of = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...of });
  const page = await context.newPage();
  page.setDefaultTimeout(SOON);
  const wrong = [];
  page.on('pageerror', (error) => wrong.push(String(error)));
  page.on('console', (it) => it.type() === 'error' && !/ERR_|401|404|503/.test(it.text()) && wrong.push(it.text()));
  page.on('request', (it) => !it.url().startsWith(way.url) && wrong.push(`asks ${it.url()}`));
  await page.goto(way.url);
  return { page, wrong, context };
}

const is_live = (page) => page.waitForFunction(() => document.querySelector('#link').textContent === 'live');
const text = (page, at) => page.locator(at).textContent();

const tries = {
  async storm() {
    const { page, wrong } = await open();
    await is_live(page);
    await page.waitForFunction(() => /waiting|wait/.test(document.querySelector('#sentence').textContent));
    await page.waitForFunction(() => document.querySelectorAll('#functions tbody tr').length >= 1);
    await page.waitForFunction(() => document.querySelectorAll('#calls tbody tr').length === 10);
    const limits = await text(page, '#limits');
    assert.match(limits, /total/);
    assert.match(limits, /of 5/);
    assert.match(await text(page, '#backends'), /● up/);
    assert.match(await text(page, '#about'), /^\d+\.\d+\.\d+ .*up \d/);
    const first = await text(page, '#tiles');
    await page.waitForFunction((first) => document.querySelector('#tiles').textContent !== first, first);
    assert.deepEqual(wrong, []);
  },

  async history() {
    // The sidecar ran for some seconds before: its past is there before any frame of the stream.
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.route('**/v1/stream', (route) => route.abort());
    await page.goto(way.url);
    const drawn = () => document.querySelector('.line.a').getAttribute('d')?.match(/[LHV]/g)?.length ?? 0;
    await page.waitForFunction(drawn);
    assert.ok((await page.evaluate(drawn)) >= 3, 'the line has a past');
    const first = await page.evaluate(() => performance.getEntriesByName('history')[0].startTime);
    console.log(`history is painted after ${first.toFixed(0)} ms`);
    assert.ok((await page.locator('.marks g').count()) >= 1, 'the start is marked');
    for (const [span, points] of [['3h', 1080], ['24h', 1440], ['10m', 600]]) {
      await page.locator(`#spans input[value="${span}"]`).check({ force: true });
      await page.waitForFunction((last) => document.querySelector('#cursor').max === last, String(points - 1));
    }
    await page.locator('#figures-box summary').click();
    assert.ok((await page.locator('#figures tbody tr').count()) >= 20);
  },

  async keyboard() {
    const { page, wrong } = await open();
    await is_live(page);
    await page.waitForFunction(() => document.querySelectorAll('#calls tbody button').length > 0);
    const seen = new Set();
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the state');
    for (let i = 0; i < 60; i += 1) {
      const at = await page.evaluate(() => document.activeElement.id || document.activeElement.name || document.activeElement.className);
      seen.add(at);
      if (at === 'cursor') {
        await page.keyboard.press('ArrowLeft');
        await page.keyboard.press('ArrowLeft');
        const told = await page.locator('#cursor').getAttribute('aria-valuetext');
        assert.match(told, /^\d\d:\d\d:\d\d: arrived /);
        await page.keyboard.press('End');
        assert.match(await page.locator('#cursor').getAttribute('aria-valuetext'), /^now: /);
      }
      if (at === 'as-link') break;
      await page.keyboard.press('Tab');
    }
    for (const one of ['span', 'limit', 'cursor', 'limits', 'functions', 'as-link']) assert.ok(seen.has(one), `${one} in ${[...seen]}`);
    await page.keyboard.press('Enter');
    await page.locator('#explain[open]').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('#explain[open]').waitFor({ state: 'hidden' });
    assert.deepEqual(wrong, []);
  },

  async axe() {
    const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [360, 1280, 3840]) {
        // The test itself needs to add a script; the page is not allowed to.
        const { page, wrong, context } = await open({ colorScheme, bypassCSP: true, viewport: { width, height: 900 } });
        await is_live(page);
        await page.waitForFunction(() => document.querySelectorAll('#calls tbody tr').length > 0);
        for (const it of ['#marks-box', '#figures-box']) await page.locator(`${it} summary`).click();
        await page.evaluate(axe);
        const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
        const told = violations.map((it) => `${it.id}: ${it.help}: ${it.nodes[0].html}`);
        assert.deepEqual(told, [], `${colorScheme}, ${width} px`);
        assert.ok(passes.length > 20);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${width} px: ${over} px too wide`);
        assert.deepEqual(wrong, []);
        await context.close();
      }
    }
  },

  async names() {
    const { page, wrong } = await open();
    await is_live(page);
    await page.waitForFunction((name) => document.querySelector('#callers').textContent.includes(name), CALLER);
    assert.equal(await page.locator('img').count(), 0);
    assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
    assert.deepEqual(wrong, []);
  },

  async hidden() {
    const { page, wrong } = await open();
    await is_live(page);
    assert.equal(way.streams, 1);
    const is = (hidden) =>
      page.evaluate((hidden) => {
        for (const [name, value] of [['hidden', hidden], ['visibilityState', hidden ? 'hidden' : 'visible']]) {
          Object.defineProperty(document, name, { configurable: true, get: () => value });
        }
        document.dispatchEvent(new Event('visibilitychange'));
      }, hidden);
    // A quick change of tabs keeps the stream.
    await is(true);
    await is(false);
    assert.equal(way.streams, 1);
    const from = Date.now();
    await is(true);
    await until('the stream ends', () => way.streams === 0);
    assert.ok(Date.now() - from < 5000, `${Date.now() - from} ms`);
    const asked = way.asked.length;
    assert.equal(await text(page, '#link'), 'stopped while hidden');
    await new Promise((go) => setTimeout(go, 1500));
    assert.equal(way.asked.length, asked, 'a hidden page asks nothing');
    await is(false);
    await is_live(page);
    assert.equal(way.streams, 1);
    assert.deepEqual(wrong, []);
  },

  async lost() {
    const { page } = await open();
    await is_live(page);
    await way.cut();
    await page.waitForFunction(() => document.querySelector('#link').className === 'link lost');
    const told = await text(page, '#link');
    assert.match(told, /^not live: .*Shown is the state at \d\d:\d\d:\d\d/);
    assert.ok((await text(page, '#sentence')).length > 5, 'the last state stays');
    await way.open();
    await is_live(page);
    const before = await text(page, '#cursor-time');
    assert.equal(before, 'now');
  },

  async token() {
    const { page, context } = await open();
    await page.locator('#sign-in').waitFor();
    assert.equal(await page.locator('#state').isVisible(), false);
    await page.locator('#token').fill('wrong');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#sign-in-failed').textContent === 'This token is not accepted.');
    await page.locator('#token').fill(TOKEN);
    await page.keyboard.press('Enter');
    await is_live(page);
    assert.equal(await page.evaluate(() => document.cookie + JSON.stringify(localStorage)), '{}');
    assert.ok(!way.asked.some((it) => it.includes(TOKEN)), 'the token is in no address');
    await page.reload();
    await is_live(page);
    await page.locator('#leave').click();
    await page.locator('#sign-in').waitFor();
    await page.reload();
    await page.locator('#sign-in').waitFor();
    const other = await context.newPage();
    await other.goto(way.url);
    await other.locator('#sign-in').waitFor();
  },

  async pictures() {
    for (const colorScheme of ['light', 'dark']) {
      const { page, context } = await open({ colorScheme });
      await is_live(page);
      await page.waitForFunction(() => document.querySelectorAll('#calls tbody tr').length === 10);
      await page.screenshot({ path: `${PICTURES}/page-${colorScheme}.png`, fullPage: true });
      await context.close();
    }
  },
};

const what = process.argv[2];
try {
  await tries[what]();
} finally {
  await browser.close();
}
process.exit(0);
