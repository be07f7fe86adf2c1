// Builds and changes the document. Text from the server only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

/** A new element. `of` has its attributes; children are nodes or text. */
export function make(tag, of = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(of)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.filter((it) => it !== null));
  return made;
}

/** A new element of a drawing. */
export function draw(tag, of = {}) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(of)) made.setAttribute(name, value);
  return made;
}

/** Sets a text only if it differs, so that a selection and a screen reader are left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows a sentence; what stands between backquotes is code. */
export function sentence(node, text) {
  if (node.dataset.told === text) return;
  node.dataset.told = text;
  const parts = text.split('`');
  node.replaceChildren(...parts.map((it, i) => (i % 2 && i < parts.length - 1 ? make('code', {}, it) : it)));
}

/**
 * A table whose rows are kept by key, so that focus, selection and scroll position survive.
 * A column is {head, cell(row, td), number}; `cell` returns a text, or fills the cell itself.
 */
export function table(place, caption, columns, key, empty) {
  const body = make('tbody');
  const head = make('tr', {}, ...columns.map((c) => make('th', { scope: 'col', class: c.number ? 'n' : null }, c.head)));
  const whole = make('table', {}, make('caption', { class: 'unseen' }, caption), make('thead', {}, head), body);
  const none = make('p', { class: 'soft' }, empty);
  const rows = new Map();
  return (list) => {
    const wanted = list.length ? whole : none;
    if (place.firstChild !== wanted) place.replaceChildren(wanted);
    const seen = new Set();
    list.forEach((row, at) => {
      const name = String(key(row));
      if (seen.has(name)) return;
      seen.add(name);
      let line = rows.get(name);
      if (!line) {
        const cells = columns.map((c, i) => make(i ? 'td' : 'th', { scope: i ? null : 'row', class: c.number ? 'n' : null }));
        line = make('tr', {}, ...cells);
        rows.set(name, line);
      }
      columns.forEach((c, i) => {
        const told = c.cell(row, line.cells[i]);
        if (told !== undefined) say(line.cells[i], told);
      });
      if (body.rows[at] !== line) body.insertBefore(line, body.rows[at] ?? null);
    });
    for (const [name, line] of rows) {
      if (!seen.has(name)) {
        line.remove();
        rows.delete(name);
      }
    }
  };
}

/** A list of facts: pairs of a name and a text. */
export function facts(place, pairs) {
  const told = JSON.stringify(pairs);
  if (place.dataset.told === told) return;
  place.dataset.told = told;
  place.replaceChildren(
    ...pairs.map(([name, text, kind]) => make('div', {}, make('dt', {}, name), make('dd', { class: kind || null }, text))),
  );
}

const NONE = '–';

/** A number with three digits that matter; thousands are grouped. */
export function figure(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) >= 100 || Number.isInteger(value)) {
    const digits = String(Math.round(value));
    return digits.length < 4 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, ',');
  }
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2).replace(/\.?0+$/, '');
}

/** A time in seconds, in the unit that suits it. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return '0 s';
  if (value < 1) return `${figure(value * 1000)} ms`;
  if (value < 120) return `${figure(value)} s`;
  if (value < 7200) return `${figure(value / 60)} min`;
  if (value < 172800) return `${figure(value / 3600)} h`;
  return `${figure(value / 86400)} days`;
}

export const millis = (value) => seconds(value === null || value === undefined ? null : value / 1000);

const two = (n) => String(n).padStart(2, '0');

/** The time of day, as the browser's clock has it; with the date if it is another day. */
export function clock(ms, short) {
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (short) return time;
  const day = at.toDateString() === new Date().toDateString() ? '' : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
  return `${day}${time}:${two(at.getSeconds())}`;
}
