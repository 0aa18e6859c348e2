// A query's tournament: the bracket as a tree, all other matches as buttons, and the details of one match.

const BOX = { width: 176, height: 46, gap: 10, between: 34 };

// Identical trajectories enter once. The short name is the first trajectory's; the full name lists all of them.
const namesOf = (item, index) => item.entrants.filter((entrant) => entrant.same_as === index).map((entrant) => entrant.name);
const fullName = (item, index) => namesOf(item, index).join(' = ');
function nameOf(item, index) {
  const names = namesOf(item, index);
  const more = names.length > 1 ? ` +${names.length - 1}` : '';
  return (names[0].length > 20 ? `${names[0].slice(0, 19)}…` : names[0]) + more;
}

const pairs = (match, i, j) => (match.i === i && match.j === j) || (match.i === j && match.j === i);
const between = (tournament, i, j) => tournament.matches.findIndex((match) => pairs(match, i, j));

function describe(item, match) {
  const [one, other] = [match.i, match.j].map((index) => fullName(item, index));
  if (!match.scores) return `${one} against ${other}: no verdict`;
  return `${one} ${number(match.scores[0], 2)}, ${other} ${number(match.scores[1], 2)}${match.is_flip ? ', the orders disagree' : ''}`;
}

function drawTournament(set, item, tournament, chosen, choose) {
  const { bracket, matches } = tournament;
  const inTree = new Set(bracket.flat().map((place) => between(tournament, place.i, place.j)));
  const rounds = Map.groupBy(matches.map((match, index) => ({ ...match, index })), (match) => match.round);
  const beside = [...rounds].filter(([, played]) => played.some((match) => !inTree.has(match.index))); // all rounds, if there is no tree
  const heading = (round) => (bracket.length ? `Seeding: matches with the ${set.isTraining ? 'anchor' : 'baseline'}` : rounds.size > 1 ? `Round ${round + 1}` : 'Matches');
  const topology = !set.isTraining && tournament.topology === 'anchor' ? 'each policy against the baseline' : words(tournament.topology);
  const isEmpty = !matches.length && !tournament.group_calls.length;
  return el('section', { class: 'tournament' },
    el('h3', {}, `${set.isTraining ? 'Tournament' : 'Evaluation'}${tournament.judge && `, ${tournament.judge}`}: ${topology}`, el('span', { class: 'label' }, set.judge)),
    beside.map(([round, played]) => [
      el('h4', {}, heading(round)),
      el('div', { class: 'matches' }, played.map((match) => matchButton(item, match, chosen, choose))),
    ]),
    bracket.length > 0 && [el('h4', {}, 'Bracket'), drawBracket(item, tournament, chosen, choose)],
    tournament.group_calls.length > 0 && drawGroupCalls(item, tournament.group_calls),
    isEmpty && el('p', { class: 'quiet' }, 'No matches: scores are pointwise, or there was no opponent.'));
}

function matchButton(item, match, chosen, choose) {
  const isPressed = String(chosen === match.index);
  const sides = [match.i, match.j].map((entrant, side) => el('span', { class: match.scores?.[side] > match.scores?.[1 - side] ? 'side wins' : 'side' },
    el('span', {}, nameOf(item, entrant)), el('span', {}, number(match.scores?.[side], 2))));
  return el('button', { type: 'button', class: 'match', 'data-match': match.index, 'aria-pressed': isPressed, title: describe(item, match),
    onclick: () => choose(match.index) }, sides);
}

function drawGroupCalls(item, calls) {
  const names = (indices) => indices?.map((index) => nameOf(item, index)).join(', ') ?? 'no verdict';
  const rows = calls.map((call) => el('tr', {}, figure(String(call.repeat + 1)), el('td', {}, names(call.shown)), el('td', {}, names(call.winners))));
  return table('calls', 'Calls', [head('repeat', { class: 'number' }), head('shown'), head('advance')], rows);
}

// Each box is centred between the boxes of its two entrants.
function drawBracket(item, tournament, chosen, choose) {
  const { bracket } = tournament;
  const left = (round) => round * (BOX.width + BOX.between) + 1;
  const centres = [];
  const lines = [];
  bracket.forEach((places, round) => centres.push(places.map((place, k) => {
    const from = round ? feeders(bracket[round - 1], place).map((index) => centres[round - 1][index]) : [(k + 0.5) * (BOX.height + BOX.gap)];
    const centre = from.reduce((sum, y) => sum + y, 0) / from.length;
    const x = left(round - 1) + BOX.width;
    if (round) lines.push(...from.map((y) => svg('path', { class: 'line', d: `M${x} ${y}h${BOX.between / 2}V${centre}h${BOX.between / 2}` })));
    return centre;
  })));
  const boxes = bracket.flatMap((places, round) => places.map((place, k) =>
    drawBox(item, tournament, place, left(round), centres[round][k] - BOX.height / 2, chosen, choose)));
  const width = left(bracket.length - 1) + BOX.width + 1;
  const height = Math.max(...centres[0]) + (BOX.height + BOX.gap) / 2;
  const drawing = svg('svg', { class: 'bracket', width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': 'Bracket' }, lines, boxes);
  return el('div', { class: 'scroll' }, drawing);
}

// Indices of the previous round's boxes whose winners meet here.
const feeders = (places, { i, j }) => [...places.keys()].filter((index) => places[index].winner != null && [i, j].includes(places[index].winner));

function drawBox(item, tournament, place, x, y, chosen, choose) {
  const index = between(tournament, place.i, place.j);
  const match = tournament.matches[index];
  const score = (entrant) => (match ? number(match.scores?.[match.i === entrant ? 0 : 1], 2) : '');
  const side = (entrant, dy) => (entrant == null
    ? svg('text', { class: 'bye', x: 10, y: dy }, 'bye')
    : [svg('text', { class: entrant === place.winner ? 'wins' : '', x: 10, y: dy }, `${entrant === place.winner ? '▸ ' : ''}${nameOf(item, entrant)}`),
      svg('text', { class: 'score', x: BOX.width - 10, y: dy }, score(entrant))]);
  const press = (event) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    choose(index);
  };
  const behaviour = match && {
    role: 'button', tabindex: 0, 'data-match': index, 'aria-pressed': String(chosen === index), 'aria-label': describe(item, match),
    onclick: () => choose(index), onkeydown: press,
  };
  return svg('g', { ...behaviour, class: match ? 'box' : 'box idle', transform: `translate(${x} ${y})` },
    match && svg('title', {}, describe(item, match)),
    svg('rect', { width: BOX.width, height: BOX.height, rx: 6 }),
    svg('path', { class: 'split', d: `M0 ${BOX.height / 2}h${BOX.width}` }),
    side(place.i, 16), side(place.j, BOX.height - 8));
}

// One match: the scores of each call by dimension, and their sum.
function drawMatch(set, item, tournament, index, close) {
  const match = tournament.matches[index];
  const entrants = [match.i, match.j];
  const names = entrants.map((entrant) => nameOf(item, entrant));
  const title = entrants.map((entrant) => fullName(item, entrant)).join(' against ');
  const heads = [...match.calls.map((call) => `${nameOf(item, call.first)} shown first`), ...(match.calls.length > 1 ? ['both orders'] : [])];
  const rows = [...dimensionsOf(match), null].map((dimension) => el('tr', { class: dimension == null ? 'total' : '' },
    el('th', { scope: 'row' }, words(dimension ?? 'total')), scorePairs(match, dimension).map((pair) => pair.map((score, side) =>
      figure(number(score, dimension == null ? 2 : 1), score > pair[1 - side] + 1e-6 ? { class: 'number wins' } : {})))));
  return el('section', { id: 'match', class: 'card match-detail', tabindex: -1, 'aria-label': `Match: ${title}` },
    el('header', {}, el('h4', {}, title, el('span', { class: 'label' }, set.judge)),
      el('button', { type: 'button', class: 'close', 'aria-label': 'Close the match', onclick: close }, '✕')),
    el('p', {}, verdict(match, names)),
    match.calls.filter((call) => call.detail?.[2]).map((call) => el('p', { class: 'reason' },
      el('span', { class: 'quiet' }, `reason, ${nameOf(item, call.first)} shown first: `), call.detail[2])),
    match.calls.filter((call) => call.error).map((call) => el('p', { class: 'error' }, `Call without a verdict: ${call.error}`)),
    el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Scores' }, el('table', { class: 'scores' },
      el('thead', {}, el('tr', {}, el('td', {}), heads.map((text) => head(text, { scope: 'colgroup', colspan: 2 }))),
        el('tr', {}, head('dimension'), heads.map(() => names.map((name) => head(name, { class: 'number' }))))),
      el('tbody', {}, rows))),
    el('p', { class: 'caption' }, `Scores are 0 to 10; a total is their weighted mean${match.calls.length > 1 ? '; the sums over both orders decide' : ''}.`));
}

function dimensionsOf(match) {
  const scores = match.calls.find((call) => call.detail)?.detail[0] ?? {};
  return Object.keys(scores).filter((name) => typeof scores[name] === 'number');
}

// [score of i, score of j] per call, then their sum; totals if `dimension` is null.
function scorePairs(match, dimension) {
  const calls = match.calls.map((call) => {
    const scores = dimension == null ? call.scores : call.detail?.map((detail) => detail[dimension]);
    return call.first === match.i ? [scores?.[0], scores?.[1]] : [scores?.[1], scores?.[0]];
  });
  const sum = (side) => (calls.some((pair) => pair[side] == null) ? null : calls.reduce((total, pair) => total + pair[side], 0));
  return calls.length > 1 ? [...calls, [sum(0), sum(1)]] : calls;
}

function verdict(match, names) {
  if (!match.scores) return 'A call failed, so the match does not count.';
  const [a, b] = match.scores;
  const result = a === b ? `A draw, ${number(a, 2)} each.` : `${names[a > b ? 0 : 1]} wins, ${number(Math.max(a, b), 2)} to ${number(Math.min(a, b), 2)}.`;
  return match.is_flip ? `${result} The two orders name different winners.` : result;
}
