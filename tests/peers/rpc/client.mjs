// The real `openai` client for Node, from .venv-rpc/node.
//
// client.mjs openai PORT COUNT: as client.py does, COUNT streams of a slow model and one answer of another.
// client.mjs leaving PORT COUNT: COUNT streams at once, of which every second one is left after three tokens. Prints how many were
// answered and how many were left.
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../../.venv-rpc/node/package.json', import.meta.url));
const { OpenAI } = require('openai');

const [kind, port, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const baseURL = `http://127.0.0.1:${port}/v1`;
const messages = [{ role: 'user', content: 'hello' }];

/** The number of tokens of a stream, which is left after so many. */
async function tokensOf(client, asked, leavesAfter) {
  const stream = await client.chat.completions.create({ messages, stream: true, ...asked });
  let tokens = 0;
  for await (const chunk of stream) {
    tokens += chunk.choices.length && chunk.choices[0].delta.content ? 1 : 0;
    if (tokens === leavesAfter) {
      stream.controller.abort();
      break;
    }
  }
  return tokens;
}

async function openai() {
  const client = new OpenAI({ baseURL, apiKey: 'sk-secret', maxRetries: 0 });
  const begun = performance.now();
  let error = null;
  for (let number = 0; number < count; number += 1) {
    try {
      const tokens = await tokensOf(client, { model: 'slow' });
      if (tokens !== 10) throw new Error(`${tokens} tokens`);
    } catch (raised) {
      error = raised;
    }
  }
  const seconds = (performance.now() - begun) / 1000;
  const other = await client.chat.completions.create({ model: 'fast', messages });
  const shown = { seconds, other: other.usage.total_tokens, error: error && error.constructor.name, text: String(error && JSON.stringify(error.error)) };
  console.log(JSON.stringify(shown));
}

async function leaving() {
  const ends = { answered: 0, left: 0 };
  const one = async (number) => {
    const client = new OpenAI({ baseURL, apiKey: `sk-${number % 5}`, maxRetries: 0 });
    const tokens = await tokensOf(client, { model: 'stand-in', max_tokens: 25 }, number % 2 ? undefined : 3);
    if (tokens !== (number % 2 ? 25 : 3)) throw new Error(`${tokens} tokens`);
    ends[number % 2 ? 'answered' : 'left'] += 1;
  };
  await Promise.all(Array.from({ length: count }, (_, number) => one(number)));
  console.log(JSON.stringify(ends));
}

await { openai, leaving }[kind]();
