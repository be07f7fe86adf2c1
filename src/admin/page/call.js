// One call in a dialog: what it waits for and when it starts, or what held it. It is asked for again
// until the call has ended.

import { $, clock, facts, millis, say, sentence } from './dom.js';
import { NoToken, json } from './feed.js';

const AGAIN_MS = 1000;

const CAUSES = {
  turn: 'its turn',
  others: 'other limits',
  shared_call: 'an identical call',
  elsewhere: 'what is outside the queue',
};

function show(of) {
  say($('explain-state'), `State: ${of.state}`);
  sentence($('explain-told'), of.sentence);
  const list = [
    ['call', of.userid ? `${of.call} of ${of.userid}` : of.call],
    ['class', of.class],
    ['caller', of.caller],
    ['charged to', of.rate_limit],
    ['arrived', `${clock(Date.parse(of.arrived))} on ${of.listener}`],
    ['in the queue', millis(of.queued_ms)],
    ['at the backend', millis(of.backend_ms)],
    ['in all', millis(of.total_ms)],
    ...of.held.map((it) => [`held by ${it.limit ?? CAUSES[it.cause] ?? it.cause}`, millis(it.ms)]),
  ];
  facts($('explain-facts'), list.filter(([, text]) => text));
}

/** Makes the dialog; the result opens it for a call. `noToken` is called when the token is refused. */
export function call(noToken) {
  const box = $('explain');
  let turn = 0;
  let from = null;

  async function follow(id, mine) {
    let again = true;
    try {
      // A hidden page asks for nothing.
      if (!document.hidden) {
        const of = await json(`/v1/calls/${encodeURIComponent(id)}`);
        if (mine !== turn) return;
        show(of);
        again = of.state !== 'ended';
      }
    } catch (error) {
      if (mine !== turn) return;
      if (error instanceof NoToken) {
        box.close();
        noToken();
        return;
      }
      // fetch fails with a TypeError if there was no answer.
      again = error instanceof TypeError;
      sentence($('explain-told'), again ? 'No answer. Trying again.' : error.message);
    }
    if (again) setTimeout(() => mine === turn && follow(id, mine), AGAIN_MS);
  }

  $('explain-close').addEventListener('click', () => box.close());
  box.addEventListener('close', () => {
    // The event comes later than the end, and the dialog may be open again for another call.
    if (box.open) return;
    turn += 1;
    // Its row may have left the table.
    if (!from.isConnected) $('calls').focus();
  });

  return (id) => {
    from = document.activeElement;
    turn += 1;
    say($('explain-head'), `Call ${id}`);
    say($('explain-state'), '');
    sentence($('explain-told'), 'asking …');
    facts($('explain-facts'), []);
    box.showModal();
    follow(id, turn);
  };
}
