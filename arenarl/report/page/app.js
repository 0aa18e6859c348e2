// The page's state, and how keys and clicks change it. The part of the address after # names the state, as a link.

const report = await unpack('index');
const NOTHING_CHOSEN = { text: '', inside: false, subtask: '', step: '', outcome: '', order: 'given', match: null };
for (const set of report.sets) {
  set.rows.forEach((row, number) => Object.assign(row, { number, key: row.step == null ? row.id : `${row.step}-${row.id}` }));
  Object.assign(set, { view: { ...NOTHING_CHOSEN, left: set.left, right: set.right }, visible: [], selected: null });
}
let set = null; // the visible set; null for the summary
let listScroll = 0; // scroll position of the list; a narrow screen shows either the list or an item
let drawing = 0; // number of the newest drawing; older drawings that still wait for data are dropped

const isNarrow = () => matchMedia('(max-width: 760px)').matches;

async function change(values) {
  const mine = set;
  Object.assign(set.view, values);
  if (set.view.inside && !set.texts) {
    byId('count').textContent = 'reading all trajectories …';
    await readTexts(set);
    if (set !== mine) return;
  }
  set.visible = visibleRows(set, set.view);
  drawRows(set, set.visible, set.view, set.selected, open);
  if ('left' in values || 'right' in values) await show();
}

async function show() {
  const mine = ++drawing;
  const { selected, view } = set;
  document.body.classList.toggle('reading', Boolean(selected));
  markSelected(set, selected);
  if (!selected) {
    byId('detail').replaceChildren(el('p', { class: 'quiet empty' }, 'Choose a query: j and k go through the list, ? shows all keys.'));
    return;
  }
  const item = await itemOf(set, selected);
  if (mine !== drawing) return;
  const focus = focusPath();
  byId('detail').replaceChildren(...drawItem(set, selected, item, { ...view, outcomes: selected.outcomes }, actions).filter(Boolean));
  byId('detail').querySelector(focus)?.focus({ preventScroll: true });
}

// Selector of the focused control, to restore the focus after the item is drawn again.
function focusPath() {
  const { match } = document.activeElement?.dataset ?? {};
  const label = document.activeElement?.getAttribute('aria-label');
  return match != null ? `[data-match="${match}"]` : label ? `[aria-label="${CSS.escape(label)}"]` : ':not(*)';
}

async function open(row, push = true) {
  if (isNarrow() && row && !set.selected) listScroll = scrollY;
  const before = set.selected;
  set.selected = row;
  set.view.match = null;
  const address = `#${set.key}${row ? `/${encodeURIComponent(row.key)}` : ''}`;
  if (push && location.hash !== address) history.pushState(null, '', address);
  row?.link?.scrollIntoView({ block: 'nearest' });
  byId('detail').scrollTop = 0;
  await show();
  if (isNarrow() && row !== before) {
    (row ? byId('detail') : before.link)?.focus({ preventScroll: true });
    scrollTo(0, row ? 0 : listScroll);
  }
}

const actions = {
  back: () => open(null),
  walk(by) {
    const at = set.visible.indexOf(set.selected);
    const next = set.visible[at < 0 ? 0 : at + by];
    if (next) open(next);
  },
  show(side, index) {
    const other = side === 'left' ? 'right' : 'left';
    const values = { [side]: set.view[side] === index && side === 'right' ? null : index };
    if (set.view[other] === index) values[other] = set.view[side];
    if (values.left === null) return;
    drawFilters(set, Object.assign(set.view, values), change);
    change(values);
  },
  async chooseMatch(tournament, index) {
    const { match } = set.view;
    const isSame = match && match.tournament === tournament && match.index === index;
    set.view.match = tournament == null || isSame ? null : { tournament, index };
    await show();
    byId('match')?.scrollIntoView({ block: 'nearest' });
  },
};

async function walkMatches(by) {
  if (!set?.selected) return;
  const item = await itemOf(set, set.selected);
  const all = item.tournaments.flatMap((tournament, t) => tournament.matches.map((_, index) => ({ tournament: t, index })));
  if (!all.length) return;
  const { match } = set.view;
  const at = match ? all.findIndex((other) => other.tournament === match.tournament && other.index === match.index) + by : by > 0 ? 0 : all.length - 1;
  const next = all[(at + all.length) % all.length];
  if (!match || all.length > 1) actions.chooseMatch(next.tournament, next.index);
}

// Shows what the address names: the summary, a set, or an item of a set.
async function route() {
  const [key, id] = location.hash.slice(1).split('/').map(decodeURIComponent);
  set = report.sets.find((candidate) => candidate.key === key) ?? null;
  byId('summary').hidden = Boolean(set);
  byId('browser').hidden = !set;
  for (const link of document.querySelectorAll('[data-tab]')) {
    if (link.dataset.tab === (set?.key ?? 'summary')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (!set) return document.body.classList.remove('reading');
  drawFilters(set, set.view, change);
  await change({});
  const first = isNarrow() ? null : set.visible[0] ?? null; // a narrow screen starts with the list
  await open(set.rows.find((row) => row.key === id) ?? first, false);
}

const isTyping = (element) => element.matches('input:not([type=checkbox]), select, textarea');

function escape() {
  if (document.activeElement === byId('search')) return byId('search').blur();
  if (set?.view.match) return actions.chooseMatch(null);
  if (set?.selected) actions.back();
}

const KEYS = {
  '/': () => byId('search')?.focus(),
  '?': () => byId('help').showModal(),
  j: () => actions.walk(1),
  k: () => actions.walk(-1),
  n: () => walkMatches(1),
  p: () => walkMatches(-1),
  x: () => set.view.right != null && actions.show('left', set.view.right),
  Escape: escape,
};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open) return;
  if (isTyping(event.target) && event.key !== 'Escape') return;
  const arrow = { ArrowDown: 'j', ArrowUp: 'k' }[event.key];
  const digit = /^Digit([1-9])$/.exec(event.code)?.[1];
  const isOnList = event.target === document.body || byId('list').contains(event.target);
  if (!set && event.key !== '?') return;
  if (digit && set.selected) {
    if (digit <= set.names.length) actions.show(event.shiftKey ? 'right' : 'left', digit - 1);
  } else if (arrow && isOnList) KEYS[arrow]();
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
}

addEventListener('keydown', press);
addEventListener('popstate', route);
drawSigns();
byId('help-button').addEventListener('click', () => byId('help').showModal());
await route();
document.body.dataset.ready = 'true';
