// What operators do: pause and resume the backend, lower a limit for a while, and the list of what
// was done. Each act is a request to the API; what is in force comes with the state.

import { $, clock, figure, make, say, seconds, table } from './dom.js';
import { NoToken, ask, json } from './feed.js';

const UNITS = { s: 1, min: 60, m: 60, h: 3600 };

/** A time such as 300, 90s, 5m or 1h, in seconds; null if it is none. */
function duration(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|min|m|h)?\s*$/.exec(text);
  return found && Number(found[1]) * UNITS[found[2] ?? 's'];
}

/** What the API says about a field, in the words of the form. */
const FIELDS = {
  hold_seconds: 'Hold',
  for_seconds: 'For',
  ramp_seconds: 'Ramp',
  why: 'Why',
  value: 'At most',
};

function words(error) {
  // fetch fails with a TypeError if there was no answer.
  if (error instanceof TypeError) return 'No answer. It may be done all the same: see what is in force.';
  return error.field ? `${FIELDS[error.field] ?? error.field}: ${error.message}` : error.message;
}

const LEAST = { hold: 0.1, ramp: 0, for: 0.1 };
const DAY = 86400;

/**
 * The place of acts in the page. `noToken` is called when the token is refused. The result shows a
 * state, as `/v1/now` gives it.
 */
export function acts(noToken) {
  let now = null;
  let known = null;

  /** Sends an act; `on_error` shows what is wrong. */
  async function send(method, path, body, on_error) {
    try {
      await ask(path, { method, headers: { 'content-type': 'application/json' }, body: body && JSON.stringify(body) });
      return true;
    } catch (error) {
      if (error instanceof NoToken) {
        for (const box of document.querySelectorAll('dialog[open]')) box.close();
        noToken();
      } else {
        on_error(words(error));
      }
      return false;
    }
  }

  /** A form in a dialog. `read` makes the request of its fields. */
  function form(name, { opens = () => {}, read, told }) {
    const box = $(`${name}-box`);
    const form = $(`${name}-form`);
    const failed = $(`${name}-failed`);
    const button = form.querySelector('[type=submit]');
    $(`${name}-open`).addEventListener('click', () => {
      form.reset();
      say(failed, '');
      opens(form.elements);
      box.showModal();
    });
    form.querySelector('[data-close]').addEventListener('click', () => box.close());
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      // A second press of the key is no second act.
      if (button.disabled) return;
      const fields = form.elements;
      for (const [field, least] of Object.entries(LEAST)) {
        const time = fields[field];
        if (!time || (time.value.trim() === '' && !time.required)) continue;
        const given = duration(time.value);
        if (given !== null && given >= least && given <= DAY) continue;
        say(failed, `${time.labels[0].firstChild.textContent.trim()}: give a time up to 24 hours, such as 90s, 5m or 1h.`);
        time.focus();
        return;
      }
      say(failed, '');
      button.disabled = true;
      const [method, path, body] = read(fields);
      const said = told(fields);
      if (await send(method, path, body, (text) => say(failed, text))) {
        box.close();
        say($('acts-told'), said);
        refresh();
      }
      button.disabled = false;
    });
  }

  form('pause', {
    opens: () => say($('pause-now'), `${figure(now.queue.waiting)} calls wait, and ${figure(now.queue.in_flight)} run. Those that run will end.`),
    read: (of) => [
      'POST',
      '/v1/backend/pause',
      { hold_seconds: duration(of.hold.value), why: of.why.value.trim(), extend_deadlines: of.extend.checked },
    ],
    told: () => 'Paused.',
  });

  form('resume', {
    read: (of) => {
      const body = { why: of.why.value.trim() };
      if (of.ramp.value.trim()) body.ramp_seconds = duration(of.ramp.value);
      return ['POST', '/v1/backend/resume', body];
    },
    told: () => 'Resumed.',
  });

  /** The limits that can be lower: those of the config that hold calls. */
  const lowered = () => now.limits.filter((it) => ['window', 'outstanding', 'paced'].includes(it.kind) && !it.observes);
  const most = () => {
    const limit = lowered().find((it) => it.name === $('lower-limit').value);
    $('lower-value').max = limit?.configured ?? '';
    say($('lower-most'), limit ? `The config allows ${figure(limit.configured)}.` : '');
  };
  $('lower-limit').addEventListener('change', most);
  form('lower', {
    opens: () => {
      $('lower-limit').replaceChildren(...lowered().map((it) => make('option', { value: it.name }, it.name)));
      most();
    },
    read: (of) => [
      'POST',
      `/v1/limits/${encodeURIComponent(of.limit.value)}`,
      { value: of.value.valueAsNumber, for_seconds: duration(of.for.value), why: of.why.value.trim() },
    ],
    told: (of) => `${of.limit.value} is lower.`,
  });

  async function undo(limit) {
    if (await send('DELETE', `/v1/limits/${encodeURIComponent(limit)}`, undefined, (text) => say($('acts-told'), text))) {
      say($('acts-told'), `${limit} is as in the config.`);
      // The row with the button will leave.
      $('lower-open').focus();
      refresh();
    }
  }

  const in_force = table(
    $('in-force'),
    'In force',
    [
      { head: 'What', cell: (it, cell) => ((cell.className = 'held'), it.what) },
      { head: 'until', cell: (it) => `${clock(it.ends_unix_ms)}, in ${seconds(Math.max(0, Math.round((it.ends_unix_ms - now.at_unix_ms) / 1000)))}` },
      { head: 'by', cell: (it) => it.author ?? '' },
      { head: 'why', cell: (it) => it.why ?? '' },
      { head: 'after a restart', cell: (it) => (it.survives_restart ? 'stays in force' : 'ends') },
      {
        head: 'Undo',
        cell: (it, cell) => {
          if (!it.limit || cell.firstChild) return;
          const button = make('button', { type: 'button', 'aria-label': `Undo the lower limit ${it.limit}` }, 'Undo');
          button.addEventListener('click', () => undo(it.limit));
          cell.append(button);
        },
      },
    ],
    (it) => it.limit ?? 'pause',
    '',
  );

  const list = table(
    $('acts'),
    'The last hundred acts, the latest first',
    [
      { head: 'When', cell: (it) => clock(it.at_unix_ms) },
      { head: 'act', cell: (it) => it.act.replaceAll('_', ' ') },
      { head: 'what', cell: (it) => it.what },
      { head: 'why', cell: (it) => it.why },
      { head: 'by', cell: (it) => it.author },
    ],
    (it) => `${it.at_unix_ms} ${it.act} ${it.what} ${it.author}`,
    'No acts yet.',
  );

  /** Gets the list, if it is open. */
  async function refresh() {
    if (!$('acts-box').open || document.hidden) return;
    try {
      list((await json('/v1/acts')).acts);
      say($('acts-failed'), '');
    } catch (error) {
      if (error instanceof NoToken) noToken();
      else say($('acts-failed'), `The list is not the newest. ${words(error)}`);
    }
  }
  $('acts-box').addEventListener('toggle', refresh);

  return (of) => {
    now = of;
    const { pause } = of;
    const rows = (of.overrides ?? []).map((it) => ({ ...it, what: `${it.limit} at most ${figure(it.value)}` }));
    if (pause) {
      const share = Math.round((pause.share ?? 0) * 100);
      const what = pause.state === 'paused' ? `Paused${pause.extend_deadlines ? ', deadlines extended' : ''}; ${figure(pause.in_flight)} calls run` : `Ramp: limits at ${share} %`;
      rows.unshift({ ...pause, what });
    }
    $('in-force').hidden = rows.length === 0;
    in_force(rows);
    say($('pause-open'), pause?.state === 'paused' ? 'Pause again …' : 'Pause …');
    $('resume-open').hidden = !pause;
    $('lower-open').hidden = lowered().length === 0;
    // What began or ended is in the list.
    const told = JSON.stringify([pause?.state, pause?.ends_unix_ms, rows.map((it) => [it.limit, it.value, it.ends_unix_ms])]);
    if (told !== known) {
      known = told;
      refresh();
    }
  };
}
