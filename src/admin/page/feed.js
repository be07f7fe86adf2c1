// Asks the server: with the token in a header, never in an address. Follows the stream while the
// page is visible, and comes back after a lost connection.

import { $ } from './dom.js';

/** Where this tab keeps the token. It leaves with the tab. */
const KEPT = 'tidegate.token';
/** A line is due each second. A connection that is silent for longer is given up. */
const SILENT_MS = 5000;
/** A hidden page stops its stream after this time, so that a quick change of tabs costs nothing. */
const HIDDEN_MS = 2000;
/** The longest line. */
const LINE_MAX = 4 << 20;
/** An answer that was asked for when the page was loaded is not used later. */
const EARLY_MS = 3000;
const BACK_OFF_MS = [500, 1000, 2000, 4000, 8000];

/** The server wants a token, or another one. */
export class NoToken extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  drop: () => sessionStorage.removeItem(KEPT),
};

/** A request. `x-tidegate-page` tells the server to leave out the browser's own dialog. */
function request(path, of = {}) {
  const headers = { 'x-tidegate-page': '1', ...of.headers };
  const kept = token.get();
  if (kept) headers.authorization = `Bearer ${kept}`;
  return fetch(path, { cache: 'no-store', credentials: 'omit', ...of, headers });
}

/**
 * What a page shows first. It came with the page where no token is needed, and else it is asked for
 * now, before the page is made.
 */
const first = new Map();
if (!document.hidden) {
  const told = $('first').textContent;
  const came = told && JSON.parse(told);
  for (const [name, path] of Object.entries({ now: '/v1/now', series: '/v1/series?span=10m' })) {
    if (came) {
      first.set(path, { came: came[name] });
      continue;
    }
    const stop = new AbortController();
    const answer = request(path, { signal: stop.signal });
    // A failure is seen where the answer is used.
    answer.catch(() => {});
    first.set(path, { answer, stop });
  }
}

/** What came early for a path, once, unless it is old. */
function early(path) {
  const of = first.get(path);
  first.delete(path);
  return performance.now() < EARLY_MS ? of : undefined;
}

/** Asks a path. */
export async function ask(path, of = {}, asked = undefined) {
  if (asked) of.signal?.addEventListener('abort', () => asked.stop.abort());
  const answer = await (asked?.answer ?? request(path, of));
  if (answer.status === 401) throw new NoToken();
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    const error = new Error(body.reason || body.error || `the server answers ${answer.status}`);
    error.field = body.field;
    throw error;
  }
  return answer;
}

export async function json(path, of) {
  const known = early(path);
  return known?.came ?? (await ask(path, of, known)).json();
}

/** Calls `take` with each line, until the server ends the answer. */
async function lines(answer, alive, take) {
  const reader = answer.body.getReader();
  const text = new TextDecoder();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    rest += text.decode(value, { stream: true });
    const whole = rest.split('\n');
    rest = whole.pop();
    if (rest.length > LINE_MAX) throw new Error('a line of the stream is too long');
    for (const line of whole) if (line) take(JSON.parse(line));
  }
}

/**
 * Follows `/v1/stream`. `on` has: `line(of)`; `fresh()`, awaited before each connection, for what
 * was missed; `state(name, why)` with live, lost or asleep; `noToken()`.
 */
export function follow(on) {
  let stop = null;
  let turn = 0;
  let hiding = null;
  let wake = () => {};
  addEventListener('online', () => wake());

  async function run(mine) {
    let failures = 0;
    while (mine === turn) {
      const abort = new AbortController();
      stop = abort;
      let silent;
      const alive = () => {
        clearTimeout(silent);
        silent = setTimeout(() => abort.abort(), SILENT_MS);
      };
      let why = 'the connection ended';
      try {
        alive();
        await on.fresh(abort.signal);
        if (mine !== turn) return;
        const answer = await ask('/v1/stream', { signal: abort.signal });
        await lines(answer, alive, (line) => {
          if (mine !== turn) return;
          failures = 0;
          on.state('live');
          on.line(line);
        });
        // The server ends each answer after some minutes. Only a failure to come back is a loss.
        if (failures === 0) {
          failures = 1;
          continue;
        }
      } catch (error) {
        if (mine !== turn) return;
        if (error instanceof NoToken) {
          turn += 1;
          on.noToken();
          return;
        }
        if (error.name !== 'AbortError' && !(error instanceof TypeError)) why = error.message;
      } finally {
        clearTimeout(silent);
        abort.abort();
      }
      const pause = BACK_OFF_MS[Math.min(failures, BACK_OFF_MS.length - 1)] * (0.8 + 0.4 * Math.random());
      failures += 1;
      on.state('lost', why);
      await new Promise((go) => {
        wake = go;
        setTimeout(go, pause);
      });
    }
  }

  function start() {
    turn += 1;
    stop?.abort();
    if (document.hidden) on.state('asleep');
    else run(turn);
  }

  function end() {
    turn += 1;
    stop?.abort();
  }

  document.addEventListener('visibilitychange', () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        hiding = null;
        end();
        on.state('asleep');
      }, HIDDEN_MS);
    } else if (hiding === null) {
      start();
    } else {
      hiding = null;
    }
  });
  return { start, end };
}
