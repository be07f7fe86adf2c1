// The timeline: small charts over one span of time, with one cursor. Each is a drawing whose
// colours come from the style sheet. A range input moves the cursor by keyboard.

import { $, clock, draw, figure, make, millis, say } from './dom.js';

const LEFT = 40;
const FOOT = 16;
const TOP = 6;
/** How marks look that are not calm. */
const LOOKS = { backend_down: 'bad', reload_refused: 'bad', pause: 'held', limit: 'held' };

/** The values of a series, however long it is. */
const of = (name) => (data) => data.series[name] ?? [];

/** Counts are the sum of a step; this makes them calls a second. */
const rate = (name) => (data) => of(name)(data).map((it) => (it === null ? null : it / data.step_seconds));

/** Refusals for any reason, a second; nothing while there was no process. */
function refused(data) {
  const all = Object.values(data.refused ?? {});
  const sum = (i) => all.reduce((sum, it) => sum + (it[i] ?? 0), 0) / data.step_seconds;
  return of('arrivals')(data).map((it, i) => (it === null ? null : sum(i)));
}

const chosen = (data, state) => data.limits?.find((it) => it.name === state.limit);

/** What each chart shows. `look` is the class of a line; `limit` and `step` lines have corners. */
const CHARTS = [
  {
    title: 'Calls a second',
    figure,
    rows: [
      { label: 'arrived', look: 'a', values: rate('arrivals') },
      { label: 'sent', look: 'b', values: rate('sent') },
      { label: 'answered', look: 'e', values: rate('answered') },
      { label: 'refused', look: 'bad', values: refused, area: true },
    ],
  },
  {
    title: 'Waiting and running',
    figure,
    rows: [
      { label: 'waiting', look: 'c', values: of('waiting'), area: true, step: true },
      { label: 'at the backend', look: 'b', values: of('in_flight'), step: true },
    ],
  },
  {
    title: 'Use of a limit',
    figure,
    rows: [
      { label: 'used', look: 'd', values: (data, state) => chosen(data, state)?.used ?? [], area: true, step: true },
      { label: 'allowed', look: 'limit', values: (data, state) => chosen(data, state)?.allowed ?? [], step: true },
    ],
  },
  {
    title: 'Time',
    figure: millis,
    rows: [
      { label: 'oldest waits', look: 'c', values: of('oldest_ms'), area: true },
      { label: 'backend p50', look: 'b', values: of('backend_p50_ms') },
      { label: 'backend p95', look: 'a', values: of('backend_p95_ms') },
    ],
  },
];

/** The next of 1, 2, 5, 10, … that is enough. */
function round_up(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 3, 5, 10].map((it) => it * power).find((it) => it >= most * 0.999);
}

/**
 * Two paths: one through the values, and one around the area below them. Nulls are gaps. `xs` are the
 * places of points as text; `low` is the place of 0, and `scale` the size of 1. This is a plain loop,
 * because it runs for thousands of points before the first frame.
 */
function paths(values, xs, low, scale, step) {
  let line = '';
  let area = '';
  let segment = '';
  let start = -1;
  let before = 0;
  for (let i = 0; i <= values.length; i += 1) {
    const value = values[i] ?? null;
    if (value === null) {
      if (start < 0) continue;
      line += segment;
      area += `${segment}L${xs[i - 1]} ${low}L${xs[start]} ${low}Z`;
      start = -1;
    } else if (start < 0) {
      start = i;
      segment = `M${xs[i]} ${(low - scale * value).toFixed(1)}`;
    } else if (!step) {
      segment += `L${xs[i]} ${(low - scale * value).toFixed(1)}`;
    } else if (value !== before) {
      segment += `H${xs[i]}V${(low - scale * value).toFixed(1)}`;
    } else if ((values[i + 1] ?? null) === null) {
      segment += `H${xs[i]}`;
    }
    before = value;
  }
  return { line, area };
}

/** Times for the axis: whole minutes or hours, about one for each 90 px. */
function ticks(data, width) {
  const length = data.points * data.step_seconds;
  const wanted = (length / Math.max(width, 90)) * 90;
  const every = [60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600].find((it) => it >= wanted) ?? 43200;
  const shift = new Date(data.start_unix_ms).getTimezoneOffset() * 60000;
  const first = Math.ceil((data.start_unix_ms - shift) / 1000 / every) * every * 1000 + shift;
  const list = [];
  for (let at = first; at < data.start_unix_ms + length * 1000; at += every * 1000) list.push(at);
  return list;
}

/** The timeline in its place in the page. */
export function timeline() {
  const state = { data: null, limit: null, at: null };
  const charts = CHARTS.map((spec, i) => {
    const head = make('h3', {}, spec.title);
    const legend = make('ul', { class: 'legend' });
    const values = spec.rows.map((row) => {
      const value = make('b', {}, '–');
      legend.append(make('li', { class: `key ${row.look}` }, `${row.label} `, value));
      return value;
    });
    const svg = draw('svg', { 'aria-hidden': 'true', class: 'chart' });
    const axes = draw('g', { class: 'axes' });
    const marks = draw('g', { class: 'marks' });
    const rows = spec.rows.map((row) => ({
      line: draw('path', { class: `line ${row.look}` }),
      area: row.area && draw('path', { class: `area ${row.look}` }),
    }));
    const cursor = draw('line', { class: 'cursor', y1: TOP });
    const shapes = rows.flatMap(({ line, area }) => (area ? [area, line] : [line]));
    svg.append(axes, ...shapes, marks, cursor);
    const box = make('figure', {}, make('figcaption', {}, head, legend), svg);
    $('charts').append(box);
    svg.addEventListener('pointermove', (event) => {
      if (!state.data) return;
      const room = svg.clientWidth - LEFT;
      const share = (event.clientX - svg.getBoundingClientRect().left - LEFT) / room;
      point(Math.round(share * (state.data.points - 1)));
    });
    svg.addEventListener('pointerleave', () => point(null));
    return { spec, svg, axes, marks, rows, cursor, values, number: i };
  });

  const range = $('cursor');
  range.addEventListener('input', () => point(range.valueAsNumber));
  range.addEventListener('blur', () => point(null));

  /** Moves the cursor to a point; null is the newest one, also later. */
  function point(at) {
    if (!state.data) return;
    const last = state.data.points - 1;
    state.at = at === null || at >= last ? null : Math.max(at, 0);
    read();
    place_cursor();
  }

  /** Shows the figures at the cursor as text. */
  function read() {
    const { data } = state;
    const last = data.points - 1;
    // The newest step of a longer span is not complete, and may be empty.
    const at = state.at ?? last;
    const moment = data.start_unix_ms + at * data.step_seconds * 1000;
    for (const { spec, values, shown } of charts) {
      spec.rows.forEach((_, i) => say(values[i], spec.figure(shown[i][at])));
    }
    const near = (data.marks ?? []).filter((it) => Math.abs(it.at_unix_ms - moment) <= data.step_seconds * 3000);
    const told = near.map((it) => it.text).join('; ');
    say($('cursor-time'), state.at === null ? 'now' : `${clock(moment)}${told ? ` · ${told}` : ''}`);
    if (document.activeElement !== range || state.at === null) range.value = at;
    const text = charts.map((chart) =>
      chart.spec.rows.map((row, i) => `${row.label} ${chart.spec.figure(chart.shown[i][at])}`).join(', '),
    );
    range.setAttribute('aria-valuetext', `${state.at === null ? 'now' : clock(moment)}: ${text.join(', ')}`);
  }

  function place_cursor() {
    const at = state.at ?? state.data.points - 1;
    for (const { cursor, x } of charts) {
      cursor.setAttribute('x1', x?.(at) ?? 0);
      cursor.setAttribute('x2', x?.(at) ?? 0);
      cursor.classList.toggle('on', state.at !== null);
    }
  }

  function paint() {
    const { data } = state;
    if (!data) return;
    // All text is set, then all sizes are read, then all is drawn: so the browser lays out the page
    // once, and after that only the drawings.
    for (const chart of charts) chart.shown = chart.spec.rows.map((row) => row.values(data, state));
    range.max = data.points - 1;
    read();
    list_marks();
    if ($('figures-box').open) figures(data, charts);
    for (const chart of charts) chart.width = chart.svg.clientWidth;
    if (charts[0].width === 0) return;
    let known = null;
    for (const chart of charts) {
      const { width } = chart;
      // The charts mostly have one width.
      if (known?.width !== width) {
        const x = (i) => LEFT + ((width - LEFT) * i) / Math.max(data.points - 1, 1);
        known = { width, x, xs: Array.from({ length: data.points }, (_, i) => x(i).toFixed(1)) };
      }
      paint_one(chart, data, known);
    }
    place_cursor();
  }

  function paint_one(chart, data, { width, x, xs }) {
    const { spec, svg } = chart;
    const most = round_up(Math.max(...chart.shown.map((values) => Math.max(0, ...values))));
    const height = Math.round(Math.min(Math.max(width * 0.26, 110), 260));
    const low = height - FOOT;
    svg.setAttribute('height', height);
    chart.cursor.setAttribute('y2', low);
    const scale = (low - TOP) / most;
    chart.x = x;
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    spec.rows.forEach((row, i) => {
      const { line, area } = paths(chart.shown[i], xs, low, scale, row.step);
      chart.rows[i].line.setAttribute('d', line);
      chart.rows[i].area?.setAttribute('d', area);
    });
    let lines = '';
    const labels = [0, most / 2, most].map((value) => {
      const y = low - scale * value;
      lines += `M${LEFT} ${y}H${width}`;
      const label = draw('text', { x: LEFT - 5, y: y + 3.5, class: 'y' });
      label.textContent = spec.figure(value);
      return label;
    });
    const place = (ms) => x((ms - data.start_unix_ms) / 1000 / data.step_seconds);
    for (const at of ticks(data, width)) {
      const px = place(at);
      if (px < LEFT + 14 || px > width - 14) continue;
      lines += `M${px} ${low}v3`;
      const label = draw('text', { x: px, y: height - 3, class: 'x' });
      label.textContent = clock(at, true);
      labels.push(label);
    }
    chart.axes.replaceChildren(draw('path', { d: lines }), ...labels);
    const marks = (data.marks ?? []).filter((it) => it.at_unix_ms >= data.start_unix_ms);
    chart.marks.replaceChildren(
      ...marks.map((mark) => {
        const px = place(mark.at_unix_ms).toFixed(1);
        const group = draw('g', { class: LOOKS[mark.kind] ?? 'calm' });
        const title = draw('title');
        title.textContent = `${clock(mark.at_unix_ms)} ${mark.text}`;
        group.append(title, draw('line', { x1: px, x2: px, y1: TOP, y2: low }), draw('path', { d: `M${px} ${TOP}l-4-6h8z` }));
        return group;
      }),
    );
  }

  function list_marks() {
    const { marks = [] } = state.data;
    say($('marks-head'), `Events (${marks.length})`);
    const told = JSON.stringify(marks);
    const list = $('marks');
    if (!$('marks-box').open || list.dataset.told === told) return;
    list.dataset.told = told;
    const latest = marks.slice(-20).reverse();
    list.replaceChildren(...latest.map((it) => make('li', {}, make('time', {}, clock(it.at_unix_ms)), ' ', it.text)));
  }

  $('marks-box').addEventListener('toggle', () => state.data && list_marks());
  $('figures-box').addEventListener('toggle', () => state.data && $('figures-box').open && figures(state.data, charts));
  new ResizeObserver(() => charts[0].svg.clientWidth !== charts[0].width && paint()).observe($('charts'));

  return {
    /** Shows other data, as `/v1/series` gives it. */
    show(data) {
      if (state.data && state.data.step_seconds !== data.step_seconds) state.at = null;
      state.data = data;
      paint();
    },
    limit(name) {
      state.limit = name;
      paint();
    },
  };
}

/** The same figures as a table of thirty rows. Counts are means, the others the highest. */
function figures(data, charts) {
  const size = Math.ceil(data.points / 30);
  const rows = charts.flatMap((chart) =>
    chart.spec.rows.map((row, i) => ({ label: row.label, told: chart.spec.figure, values: chart.shown[i], mean: chart.number === 0 })),
  );
  const body = make('tbody');
  for (let at = data.points - (data.points % size || size); at >= 0; at -= size) {
    const cells = rows.map((row) => {
      const known = row.values.slice(at, at + size).filter((it) => it !== null && it !== undefined);
      const value = !known.length ? null : row.mean ? known.reduce((a, b) => a + b, 0) / known.length : Math.max(...known);
      return make('td', { class: 'n' }, row.told(value));
    });
    body.append(make('tr', {}, make('th', { scope: 'row' }, clock(data.start_unix_ms + at * data.step_seconds * 1000)), ...cells));
  }
  const names = ['from', ...rows.map((row) => row.label)];
  const head = make('tr', {}, ...names.map((name) => make('th', { scope: 'col', class: name === 'from' ? null : 'n' }, name)));
  const caption = make('caption', {}, `Each row is ${size * data.step_seconds} s: the mean of calls a second, and the highest of the others.`);
  $('figures').replaceChildren(make('table', {}, caption, make('thead', {}, head), body));
}

/** Adds a frame of the stream to data of one-second steps. */
export function add_point(data, point, now) {
  const slots = Math.floor((point.at_unix_ms - data.start_unix_ms) / 1000) - data.points + 1;
  const push = (list, value) => {
    if (slots <= 0) {
      list[data.points - 1] = value ?? null;
      return;
    }
    for (let i = 1; i < Math.min(slots, data.points); i += 1) list.push(null);
    list.push(value ?? null);
    list.splice(0, list.length - data.points);
  };
  for (const name of Object.keys(data.series)) push(data.series[name], point[name]);
  data.refused ??= {};
  for (const reason of Object.keys(point.refused ?? {})) data.refused[reason] ??= new Array(data.points).fill(null);
  for (const reason of Object.keys(data.refused)) push(data.refused[reason], point.refused?.[reason] ?? 0);
  const uses = new Map(now.limits.map((limit, i) => [limit.name, point.limits?.[i]]));
  for (const [name] of uses) {
    if (!data.limits.some((it) => it.name === name)) {
      data.limits.push({ name, used: new Array(data.points).fill(null), allowed: new Array(data.points).fill(null) });
    }
  }
  data.limits = data.limits.filter((it) => uses.has(it.name));
  for (const limit of data.limits) {
    const [used, allowed] = uses.get(limit.name) ?? [];
    push(limit.used, used);
    push(limit.allowed, allowed);
  }
  if (slots > 0) data.start_unix_ms += slots * 1000;
}
