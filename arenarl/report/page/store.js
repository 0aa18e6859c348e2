// The data: an index of each set's rows, and blocks of items that are unpacked when somebody looks at one of them.

const KEPT_BLOCKS = 8;
const opened = new Map();

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

function block(set, index) {
  const id = `${set.key}-${index}`;
  const found = opened.get(id) ?? unpack(id);
  opened.delete(id); // to be put last: the first is the one that was not used for longest
  opened.set(id, found);
  if (opened.size > KEPT_BLOCKS) opened.delete(opened.keys().next().value);
  return found;
}

const itemOf = async (set, row) => (await block(set, row.block))[row.position];

// Everything that a row's trajectories say, in lower case; read once, on the first search in trajectories.
async function readTexts(set) {
  if (set.texts) return;
  const texts = new Map();
  const blocks = new Set(set.rows.map((row) => row.block));
  for (const index of blocks) {
    const items = await unpack(`${set.key}-${index}`);
    const said = items.map((item) => item.entrants.flatMap((entrant) => entrant.turns.flatMap(textsOf)).join('\n').toLowerCase());
    for (const row of set.rows) if (row.block === index) texts.set(row, said[row.position]);
  }
  set.texts = texts;
}

function textsOf(turn) {
  const calls = turn.tool_calls.map((call) => `${call.name} ${shown(call.arguments)}`);
  return [turn.thought, ...calls, ...turn.observations, turn.answer ?? '', turn.text];
}

const shown = (args) => (typeof args === 'string' ? args : JSON.stringify(args, null, 1));
