// Starts the page: signs in, gets the state and the history, then follows the stream.

import { acts } from './acts.js';
import { call } from './call.js';
import { add_point, timeline } from './chart.js';
import { $, clock, make, say } from './dom.js';
import { NoToken, follow, json, token } from './feed.js';
import { head, parts } from './parts.js';

/** The screen reader hears a change of the state at once, and figures at most this often. */
const SPEAK_MS = 15000;
/** No frame takes longer, where there are frames. */
const FRAME_MS = 500;

let span = '10m';
let data = null;
let now = null;
let limit = null;
let refresh = null;

const charts = timeline();
/** Shows what the first frame does without; null until that frame is painted. */
let show_rest = null;

/** Says the sentence to a screen reader: when its reason changes, and else rarely. */
const speak = (() => {
  let reason = null;
  let at = 0;
  return (of) => {
    const held = of.limits.filter((it) => it.waiting > 0 && !it.open).map((it) => it.name);
    const mine = JSON.stringify([of.ready.ok, of.pause?.state, of.queue.waiting > 0, held[0]]);
    if (mine === reason && Date.now() - at < SPEAK_MS) return;
    if (mine === reason && of.queue.waiting === 0) return;
    reason = mine;
    at = Date.now();
    say($('spoken'), of.sentence.replaceAll('`', ''));
  };
})();

/** Makes what the first frame does without, and shows it. */
function make_rest() {
  const show_parts = parts(call(sign_in));
  const show_acts = acts(sign_in);
  show_rest = (of) => {
    show_parts(of);
    show_acts(of);
    speak(of);
  };
  show_rest(now);
  $('rest').hidden = false;
}

/**
 * Once the next frame is on the screen, if it is the first one with content; else once it is made. A
 * hidden page has no frames.
 */
const painted = () =>
  new Promise((go) => {
    const shown = new PerformanceObserver((list) => list.getEntriesByName('first-contentful-paint').length && go());
    requestAnimationFrame(() => shown.observe({ type: 'paint', buffered: true }));
    setTimeout(go, FRAME_MS);
  });

function take(of) {
  now = of;
  head(of);
  show_rest?.(of);
  document.title = of.queue.waiting ? `(${of.queue.waiting}) Tidegate` : 'Tidegate';
  pick_limits(of.limits);
}

/** The limit in the timeline: as chosen, else the one that most calls wait for. */
function pick_limits(limits) {
  const list = $('limit');
  const names = limits.map((it) => it.name);
  if (list.dataset.told !== JSON.stringify(names)) {
    list.dataset.told = JSON.stringify(names);
    list.replaceChildren(...names.map((name) => make('option', { value: name }, name)));
    if (!names.includes(limit)) limit = null;
    if (limit) list.value = limit;
  }
  if (limit === null && names.length) {
    const busy = (it) => it.waiting * 1000 + (it.allowed ? it.used / it.allowed : 0);
    limit = limits.reduce((a, b) => (busy(b) > busy(a) ? b : a)).name;
    list.value = limit;
    charts.limit(limit);
  }
}

$('limit').addEventListener('change', () => {
  limit = $('limit').value;
  charts.limit(limit);
});

async function get_series(signal) {
  const asked = span;
  const got = await json(`/v1/series?span=${asked}`, { signal });
  if (asked !== span) return;
  data = got;
}

async function show_series() {
  await get_series();
  charts.show(data);
}

$('spans').addEventListener('change', (event) => {
  span = event.target.value;
  show_series().catch(failed);
});

function failed(error) {
  if (error instanceof NoToken) sign_in();
  else link('lost', error.message);
}

const feed = follow({
  async fresh(signal) {
    const [state] = await Promise.all([json('/v1/now', { signal }), get_series(signal)]);
    $('sign-in').hidden = true;
    $('state').hidden = false;
    take(state);
    charts.show(data);
    if (!show_rest) {
      await painted();
      if (!show_rest) make_rest();
    }
    // The first look at what this tab keeps takes long.
    $('leave').hidden = !token.get();
  },
  line({ now: state, point, marks }) {
    take(state);
    if (!data) return;
    if (marks?.length) data.marks = [...data.marks, ...marks].slice(-200);
    if (data.step_seconds === 1) {
      add_point(data, point, state);
      charts.show(data);
    } else if (!refresh) {
      // A longer span has a new step only each 10 or 60 s.
      refresh = setTimeout(() => {
        refresh = null;
        if (data.step_seconds > 1 && !document.hidden) show_series().catch(failed);
      }, data.step_seconds * 1000);
    }
  },
  state: link,
  noToken: sign_in,
});

/** Shows how the connection is. */
function link(state, why) {
  const words = {
    live: 'live',
    asleep: 'stopped while hidden',
    lost: `not live: ${why}. Shown is the state at ${now ? clock(now.at_unix_ms) : 'no time'}. Trying again.`,
  };
  say($('link'), words[state]);
  $('link').className = `link ${state}`;
  document.body.classList.toggle('stale', state === 'lost');
}

function sign_in() {
  feed.end();
  const wrong = token.get() !== null;
  token.drop();
  $('state').hidden = true;
  $('leave').hidden = true;
  $('sign-in').hidden = false;
  say($('sign-in-failed'), wrong ? 'This token is not accepted.' : '');
  say($('link'), 'signed out');
  $('link').className = 'link asleep';
  $('token').focus();
}

$('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  token.set($('token').value.trim());
  $('token').value = '';
  feed.start();
});

$('leave').addEventListener('click', () => {
  token.drop();
  sign_in();
});

feed.start();
