// The list: filters, order, rows. Each row is built once; the browser lays out only visible rows.

const MARKS = {
  win: ['▲', 'beats the baseline'], loss: ['▼', 'loses to the baseline'], draw: ['=', 'draws with the baseline'],
  invalid: ['✕', 'invalid'], none: ['?', 'no verdict'],
};

const OTHER_SIGNS = {
  '0.5': 'equal ranks: their mean; 0 is best', '= name': 'the same trajectory, which plays once', '+4': 'and four identical ones',
  'L R': 'show it on the left, on the right',
  '18.00': 'in a match: the sum over both orders', '▸': 'advances in the bracket', '–': 'no value', bold: 'the higher of two scores',
};

// The legend of all signs, in the help.
function drawSigns() {
  const signs = [...Object.values(MARKS), ...Object.entries(OTHER_SIGNS)];
  byId('signs').replaceChildren(...signs.flatMap(([sign, text]) => [el('dt', {}, sign), el('dd', {}, text)]));
}

const EVALUATION_ORDERS = {
  given: ['order of the test set', () => 0],
  worst: ['left: lowest quality first', (row, view) => row.qualities[view.left]],
  best: ['left: highest quality first', (row, view) => -row.qualities[view.left]],
  gain: ['left above right, widest gap first', (row, view) => row.qualities[view.right] - row.qualities[view.left]],
  fall: ['left below right, widest gap first', (row, view) => row.qualities[view.left] - row.qualities[view.right]],
};
const spread = (row) => Math.max(...row.qualities) - Math.min(...row.qualities);
const mean = (row) => row.qualities.reduce((sum, quality) => sum + quality, 0) / row.qualities.length;
const TRAINING_ORDERS = {
  given: ['by step', () => 0],
  spread: ['widest spread first', (row) => -spread(row)],
  worst: ['lowest mean quality first', mean],
  best: ['highest mean quality first', (row) => -mean(row)],
};
const ordersOf = (set) => (set.isTraining ? TRAINING_ORDERS : EVALUATION_ORDERS);

function drawFilters(set, view, change) {
  const any = (values, text) => [['', text], ...values.map((value) => [String(value), String(value)])];
  const distinct = (key) => [...new Set(set.rows.map((row) => row[key]))];
  const put = (key) => (value) => change({ [key]: value });
  const putEntrant = (key) => (value) => change({ [key]: value === '' ? null : Number(value) });
  const hasTruth = set.rows.some((row) => row.qualities[0] != null);  // all orders but the first compare true qualities
  const outcomes = [['', 'anything'], ...Object.entries(MARKS).map(([key, [sign, text]]) => [key, `${sign} ${text}`])];
  const entrants = set.names.map((name, index) => [String(index), name]);
  const search = el('input', { id: 'search', type: 'search', value: view.text, placeholder: 'words, or an id', 'aria-keyshortcuts': '/',
    oninput: (event) => change({ text: event.target.value }) });
  const inside = el('input', { id: 'inside', type: 'checkbox', checked: view.inside,
    onchange: (event) => change({ inside: event.target.checked }) });
  byId('filters').replaceChildren(...[
    el('label', { class: 'wide' }, el('span', {}, 'search'), search),
    el('label', { class: 'wide check' }, inside, ' also in thoughts, tool calls, results and answers'),
    distinct('subtask').length > 1 && choices('subtask', view.subtask, any(distinct('subtask'), 'all'), put('subtask'), { id: 'subtask' }),
    set.rows[0]?.step != null && choices('step', view.step, any(distinct('step'), 'all'), put('step'), { id: 'step' }),
    !set.isTraining && choices('left', view.left, entrants, putEntrant('left'), { id: 'left' }),
    !set.isTraining && choices('right', view.right ?? '', [['', 'nothing'], ...entrants], putEntrant('right'), { id: 'right' }),
    !set.isTraining && choices('left is', view.outcome, outcomes, put('outcome'), { id: 'outcome' }),
    hasTruth && choices('order', view.order, Object.entries(ordersOf(set)).map(([key, [text]]) => [key, text]), put('order'), { id: 'order' }),
  ].filter(Boolean));
}

function visibleRows(set, view) {
  const needles = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = view.inside ? set.texts : null;
  const rows = set.rows.filter((row) => {
    const text = `${row.query}\n${row.id}`.toLowerCase();
    return (!view.subtask || row.subtask === view.subtask)
      && (!view.step || String(row.step) === view.step)
      && (!view.outcome || row.outcomes[view.left] === view.outcome)
      && needles.every((needle) => text.includes(needle) || texts?.get(row).includes(needle));
  });
  const order = ordersOf(set)[view.order][1];
  const keys = new Map(rows.map((row) => [row, order(row, view)]));
  return rows.sort((one, other) => (keys.get(one) || 0) - (keys.get(other) || 0) || one.number - other.number);
}

function mark(outcome) {
  const [sign, text] = MARKS[outcome];
  return el('span', { class: `mark ${outcome}`, title: text, role: 'img', 'aria-label': text }, sign);
}

function rowFigures(set, row, view) {
  if (set.isTraining) {
    const [worst, best] = [Math.min(...row.qualities), Math.max(...row.qualities)];
    const range = row.qualities[0] == null ? [] : [el('span', {}, `quality ${number(worst)} to ${number(best)}`)];
    return [row.step != null && el('span', {}, `step ${row.step}`), ...range];
  }
  return [view.left, view.right].filter((index) => index != null).map((index) =>
    el('span', { title: row.qualities[index] == null ? set.names[index] : `${set.names[index]}: noise-free quality` }, index > 0 && mark(row.outcomes[index]), ` ${number(row.qualities[index])}`));
}

function drawRows(set, rows, view, selected, open) {
  const items = rows.map((row) => {
    row.link ??= el('a', { href: `#${set.key}/${encodeURIComponent(row.key)}`, onclick: (event) => { event.preventDefault(); open(row); } });
    row.link.replaceChildren(el('span', { class: 'text' }, row.query),
      el('span', { class: 'figures' }, el('span', {}, row.subtask), rowFigures(set, row, view)));
    row.element ??= el('li', {}, row.link);
    return row.element;
  });
  byId('list').replaceChildren(...items);
  markSelected(set, selected);
  byId('count').textContent = `${rows.length} of ${set.rows.length} ${set.isTraining ? 'groups' : 'queries'}`;
}

function markSelected(set, selected) {
  for (const row of set.rows) {
    if (!row.link) continue;
    if (row === selected) row.link.setAttribute('aria-current', 'true');
    else row.link.removeAttribute('aria-current');
  }
}
