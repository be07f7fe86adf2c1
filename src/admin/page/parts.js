// The parts of the page that show the state of one moment.

import { $, clock, facts, figure, make, millis, say, seconds, sentence, table } from './dom.js';

const KINDS = {
  window: 'in a window',
  outstanding: 'at once',
  paced: 'a second',
  bucket: 'bucket',
  quota: 'quota',
  lease: 'lease',
};

/** A bar with its figures as text beside it. */
function bar(cell, used, allowed) {
  let bar = cell.firstChild;
  if (!bar) {
    bar = make('span', { class: 'bar', 'aria-hidden': 'true' }, make('span'));
    cell.append(bar, make('span', { class: 'of' }));
  }
  const share = allowed > 0 ? Math.min(Math.max(used / allowed, 0), 1) : used > 0 ? 1 : 0;
  bar.firstChild.style.inlineSize = `${(share * 100).toFixed(1)}%`;
  bar.className = share >= 1 ? 'bar full' : share >= 0.8 ? 'bar high' : 'bar';
  say(cell.lastChild, `${figure(used)} of ${figure(allowed)}`);
}

function opens(limit) {
  const when = limit.open ? 'open' : limit.opens_in_seconds === null ? 'when a call ends' : `in ${seconds(limit.opens_in_seconds)}`;
  return limit.observes ? `observes; would be ${when}` : when;
}

function shared(limit) {
  const of = limit.shared;
  if (!of) return '';
  const leased = of.leased === null || of.leased === undefined ? `no lease, safe share ${figure(of.safe)}` : `${figure(of.leased)} leased`;
  return `${leased}, wants ${figure(of.wants)}`;
}

const less = (limit) => (limit.allowed !== limit.configured && limit.configured !== null ? `, configured ${figure(limit.configured)}` : '');

/** A word that says how a thing is, with a sign beside its colour. */
function state(cell, good, word) {
  cell.className = good ? 'good' : 'bad';
  return `${good ? '●' : '▲'} ${word}`;
}

/** Rates and times of functions, and of callers. */
function rows_of(place, caption, name, empty) {
  return table(
    $(place),
    caption,
    [
      { head: name, cell: (it) => it[name.toLowerCase()] || '(unknown)' },
      { head: 'a second', number: true, cell: (it) => figure(it.per_second) },
      { head: 'waiting', number: true, cell: (it) => figure(it.waiting) },
      { head: 'held by', cell: (it) => it.held_by ?? '' },
      { head: 'running', number: true, cell: (it) => figure(it.in_flight) },
      { head: 'queue p50/p95', number: true, cell: (it) => `${millis(it.queue_p50_ms)} / ${millis(it.queue_p95_ms)}` },
      { head: 'backend p50/p95', number: true, cell: (it) => `${millis(it.backend_p50_ms)} / ${millis(it.backend_p95_ms)}` },
    ],
    (it) => (name === 'Caller' ? (it.id ?? it.caller) : it.function),
    empty,
  );
}

/** Shows what stands above the timeline. */
export function head(now) {
  sentence($('sentence'), now.sentence);
  const held = now.queue.waiting > 0 || now.queue.door > 0;
  $('sentence').className = !now.ready.ok ? 'bad' : held || now.pause ? 'held' : 'good';
  say($('about'), `${now.version}${now.revision ? ` (${now.revision.slice(0, 10)})` : ''}, up ${seconds(Math.round(now.uptime_seconds))}`);
  notices(now);
  tiles(now);
}

/** Makes the parts below the timeline; the result shows a state, as `/v1/now` gives it. `explain` opens one call. */
export function parts(explain) {
  const limits = table(
    $('limits'),
    'Limits, buckets, quotas and leases',
    [
      { head: 'Limit', cell: (it) => it.name },
      { head: 'used', cell: (it, cell) => bar(cell, it.used, it.allowed) },
      { head: 'waiting', number: true, cell: (it) => figure(it.waiting) },
      { head: 'opens', cell: (it, cell) => ((cell.className = it.open ? '' : 'held'), opens(it)) },
      { head: 'holds', cell: (it) => (it.scope === 'all' ? 'all calls' : it.scope) },
      { head: 'bounds', cell: (it) => `${it.unit === 'tokens' ? 'tokens, ' : ''}${KINDS[it.kind] ?? it.kind}${less(it)}` },
      { head: 'shared', cell: shared },
    ],
    (it) => it.name,
    'There are no limits.',
  );
  const functions = rows_of('functions', 'Functions', 'Function', 'No calls yet.');
  const callers = rows_of('callers', 'Callers', 'Caller', 'No calls yet.');
  const calls = table(
    $('calls'),
    'The ten oldest calls',
    [
      {
        head: 'Call',
        cell: (it, cell) => {
          if (cell.firstChild) return;
          const button = make('button', { type: 'button', class: 'as-link', 'aria-label': `Explain call ${it.id}` }, String(it.id));
          button.addEventListener('click', () => explain(it.id));
          cell.append(button);
        },
      },
      { head: 'Function', cell: (it) => it.function },
      { head: 'Caller', cell: (it) => it.caller ?? '' },
      { head: 'Class', cell: (it) => it.class ?? '' },
      { head: 'waits', number: true, cell: (it) => seconds(it.waits_seconds) },
      { head: 'for', cell: (it) => it.waits_for ?? 'its turn' },
      { head: 'starts in', number: true, cell: (it) => seconds(it.starts_in_seconds) },
    ],
    (it) => it.id,
    'No call waits.',
  );
  const backends = table(
    $('backends'),
    'Backends',
    [
      { head: 'Backend', cell: (it) => it.name },
      { head: 'address', cell: (it) => it.address },
      { head: 'state', cell: (it, cell) => state(cell, it.up, it.up ? 'up' : 'down') },
      { head: 'since', cell: (it) => (it.since_unix_ms ? clock(it.since_unix_ms) : 'the start') },
      { head: 'connections', number: true, cell: (it) => figure(it.connections) },
      { head: 'failures in 1 h', number: true, cell: (it) => figure(it.failures_1h) },
    ],
    (it) => `${it.name} ${it.address}`,
    'There are no backends.',
  );
  const refusals = table(
    $('refusals'),
    'Refusals by reason',
    [
      {
        head: 'Reason',
        cell: (it, cell) => {
          if (!cell.firstChild) cell.append(make('a', { href: `/errors#${encodeURIComponent(it.reason)}` }, it.reason));
        },
      },
      { head: 'calls', number: true, cell: (it) => figure(it.count) },
      { head: 'what to do', cell: (it, cell) => sentence(cell, it.what_to_do) },
    ],
    (it) => it.reason,
    'No call was refused in the last hour.',
  );

  return (now) => {
    limits(now.limits);
    functions(now.functions ?? []);
    callers(now.callers ?? []);
    calls(now.oldest_calls ?? []);
    backends(now.backends ?? []);
    refusals(now.refusals_1h ?? []);
    places(now);
  };
}

function notices(now) {
  const list = [];
  if (!now.ready.ok) list.push(['bad', `Not ready: ${now.ready.why}`]);
  if (now.reload && !now.reload.taken) {
    list.push(['bad', `The reload at ${clock(now.reload.at_unix_ms)} was refused:\n${(now.reload.mistakes ?? []).join('\n')}`]);
  }
  for (const it of now.notices ?? []) list.push(['held', it]);
  const place = $('notices');
  const told = JSON.stringify(list);
  if (place.dataset.told === told) return;
  place.dataset.told = told;
  place.replaceChildren(...list.map(([kind, text]) => make('p', { class: `notice ${kind}` }, text)));
}

function tiles(now) {
  const sum = (list, of) => list.reduce((all, it) => all + (it[of] ?? 0), 0);
  const refused = sum(now.refusals_1h ?? [], 'count');
  facts($('tiles'), [
    ['waiting', figure(now.queue.waiting), now.queue.waiting > 0 ? 'held' : ''],
    ['at the door', figure(now.queue.door), now.queue.door > 0 ? 'bad' : ''],
    ['oldest', seconds(now.queue.oldest_seconds)],
    ['at the backend', figure(now.queue.in_flight)],
    ['calls a second', figure(sum(now.functions ?? [], 'per_second'))],
    ['refused in 1 h', figure(refused), refused > 0 ? 'bad' : ''],
  ]);
}

function places(now) {
  const list = (now.stores ?? []).map((it) => [`store ${it.name}`, `${it.up ? '● up' : it.up === null ? '○ not asked yet' : '▲ down'}${it.trouble ? `: ${it.trouble}` : ''}`, it.up ? 'good' : it.up === null ? '' : 'bad']);
  if (now.lease_master) list.push(['lease master', now.lease_master]);
  const reload = now.reload ? `${now.reload.taken ? 'taken' : 'refused'} ${clock(now.reload.at_unix_ms)}` : 'none since the start';
  list.push(['last reload', reload, now.reload && !now.reload.taken ? 'bad' : '']);
  list.push(['queue', `at most ${figure(now.queue.capacity)} calls`]);
  facts($('places'), list);
}
