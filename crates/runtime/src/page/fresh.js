// Keeps a page that the server wrote fresh: gets it again after the seconds that it asks for, and
// changes only what differs, so that focus, selection and scroll position survive.

const LATE_MS = 10000;
const main = document.getElementById('main');
const link = document.getElementById('link');
const every = Number(main.dataset.fresh) * 1000;

/** Makes `old` like `now`. Both have the same name. */
function change(old, now) {
  if (old.isEqualNode(now)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = now.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const [before, after] = [[...old.childNodes], [...now.childNodes]];
  after.forEach((to, i) => {
    const from = before[i];
    if (!from) old.append(to);
    else if (from.nodeName === to.nodeName) change(from, to);
    else from.replaceWith(to);
  });
  for (const rest of before.slice(after.length)) rest.remove();
}

function told(state, text) {
  link.className = `link ${state}`;
  if (link.textContent !== text) link.textContent = text;
}

async function get() {
  try {
    const answer = await fetch(location.href, { cache: 'no-store', signal: AbortSignal.timeout(LATE_MS) });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    change(main, page.getElementById('main'));
    told('live', `each ${every / 1000} s`);
  } catch (error) {
    told('lost', `not live: ${error instanceof TypeError ? 'no answer' : error.message}. Trying again.`);
  }
}

async function run() {
  for (;;) {
    await new Promise((go) => setTimeout(go, every));
    if (document.hidden) await new Promise((go) => document.addEventListener('visibilitychange', go, { once: true }));
    await get();
  }
}

told('live', `each ${every / 1000} s`);
run();
