// The data: an index of each set's rows, and blocks of items that are unpacked on demand.

const KEPT_BLOCKS = 8;
const opened = new Map();

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

function block(set, index) {
  const id = `${set.key}-${index}`;
  const items = opened.get(id) ?? unpack(id);
  opened.delete(id); // moves it to the end, so the first block is the least recently used
  opened.set(id, items);
  if (opened.size > KEPT_BLOCKS) opened.delete(opened.keys().next().value);
  return items;
}

const itemOf = async (set, row) => (await block(set, row.block))[row.position];

// Reads the text of all trajectories in lower case, once, on the first search in trajectories.
async function readTexts(set) {
  if (set.texts) return;
  const texts = new Map();
  const blocks = new Set(set.rows.map((row) => row.block));
  for (const index of blocks) {
    const items = await unpack(`${set.key}-${index}`);
    const itemTexts = items.map((item) => item.entrants.flatMap((entrant) => entrant.turns.flatMap(textsOf)).join('\n').toLowerCase());
    for (const row of set.rows) if (row.block === index) texts.set(row, itemTexts[row.position]);
  }
  set.texts = texts;
}

function textsOf(turn) {
  const calls = turn.tool_calls.map((call) => `${call.name} ${argumentsText(call.arguments)}`);
  return [turn.thought, ...calls, ...turn.observations, turn.answer ?? '', turn.text];
}

const argumentsText = (args) => (typeof args === 'string' ? args : JSON.stringify(args, null, 1));
