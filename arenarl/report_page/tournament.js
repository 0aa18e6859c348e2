// A query's tournament: the bracket as a tree, all other matches as buttons, and one match with the scores of its two calls.

const BOX = { width: 176, height: 46, gap: 10, between: 34 };

const sidesOf = (item, match) => [match.i, match.j].map((index, side) => ({
  name: nameOf(item, index), score: match.scores?.[side], wins: match.scores ? match.scores[side] > match.scores[1 - side] : false,
}));

// Identical trajectories enter once: the first one's name stands for all, the full name has them all.
const namesOf = (item, index) => item.entrants.filter((entrant) => entrant.same_as === index).map((entrant) => entrant.name);
const fullName = (item, index) => namesOf(item, index).join(' = ');
function nameOf(item, index) {
  const names = namesOf(item, index);
  const more = names.length > 1 ? ` +${names.length - 1}` : '';
  return (names[0].length > 20 ? `${names[0].slice(0, 19)}…` : names[0]) + more;
}

const between = (tournament, i, j) => tournament.matches.findIndex((match) => (match.i === i && match.j === j) || (match.i === j && match.j === i));

function describe(item, match) {
  const [one, other] = [match.i, match.j].map((index) => fullName(item, index));
  if (!match.scores) return `${one} against ${other}: no verdict`;
  return `${one} ${number(match.scores[0], 2)}, ${other} ${number(match.scores[1], 2)}${match.is_flip ? ', the orders disagree' : ''}`;
}

function drawTournament(set, item, tournament, chosen, choose) {
  const inTree = new Set(tournament.bracket.flat().filter((place) => place.i != null && place.j != null).map((place) => between(tournament, place.i, place.j)));
  const rounds = Map.groupBy(tournament.matches.map((match, index) => ({ ...match, index })), (match) => match.round);
  const groups = [...rounds].filter(([, matches]) => !tournament.bracket.length || matches.some((match) => !inTree.has(match.index)));
  const heading = (round) => (tournament.bracket.length ? 'Seeding: matches with the anchor' : rounds.size > 1 ? `Round ${round + 1}` : 'Matches');
  return el('section', { class: 'tournament' },
    el('h3', {}, `Tournament${tournament.judge && `, ${tournament.judge}`}: ${words(tournament.topology)}`, el('span', { class: 'label' }, set.judge)),
    groups.map(([round, matches]) => [el('h4', {}, heading(round)), el('div', { class: 'matches' }, matches.map((match) => matchButton(item, tournament, match, chosen, choose)))]),
    tournament.bracket.length > 0 && [el('h4', {}, 'Bracket'), drawBracket(item, tournament, chosen, choose)],
    drawGroupCalls(item, tournament),
    !tournament.matches.length && !tournament.group_calls.length && el('p', { class: 'quiet' }, 'No matches: scores are pointwise, or there was nobody to meet.'));
}

function matchButton(item, tournament, match, chosen, choose) {
  const sides = sidesOf(item, match);
  return el('button', { type: 'button', class: 'match', 'data-match': match.index, 'aria-pressed': String(chosen === match.index), title: describe(item, match),
    onclick: () => choose(match.index) },
  sides.map((side) => el('span', { class: side.wins ? 'side wins' : 'side' }, el('span', {}, side.name), el('span', {}, number(side.score, 2)))));
}

function drawGroupCalls(item, tournament) {
  if (!tournament.group_calls.length) return null;
  const names = (indices) => indices?.map((index) => nameOf(item, index)).join(', ') ?? 'no verdict';
  const rows = tournament.group_calls.map((call) => el('tr', {}, el('td', {}, String(call.repeat + 1)), el('td', {}, names(call.shown)), el('td', {}, names(call.winners))));
  return el('div', { class: 'scroll', tabindex: 0 }, el('table', {}, el('thead', {}, el('tr', {}, ['repeat', 'shown', 'go on'].map((text) => el('th', { scope: 'col' }, text)))), el('tbody', {}, rows)));
}

// Each box stands halfway between the two that feed it.
function drawBracket(item, tournament, chosen, choose) {
  const centre = [];
  tournament.bracket.forEach((places, round) => {
    centre.push(places.map((_, k) => (round ? mid(centre[round - 1], 2 * k) : (k + 0.5) * (BOX.height + BOX.gap))));
  });
  const left = (round) => round * (BOX.width + BOX.between) + 1;
  const width = left(centre.length - 1) + BOX.width + 1;
  const height = Math.max(...centre[0]) + BOX.height / 2 + BOX.gap / 2;
  const lines = centre.slice(1).flatMap((ys, r) => ys.flatMap((y, k) => [2 * k, 2 * k + 1].filter((from) => from < centre[r].length).map((from) => {
    const x = left(r) + BOX.width;
    return svg('path', { class: 'line', d: `M${x} ${centre[r][from]}h${BOX.between / 2}V${y}h${BOX.between / 2}` });
  })));
  const boxes = tournament.bracket.flatMap((places, round) => places.map((place, k) =>
    drawBox(item, tournament, place, left(round), centre[round][k] - BOX.height / 2, chosen, choose)));
  return el('div', { class: 'scroll' }, svg('svg', { class: 'bracket', width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': 'Bracket' }, lines, boxes));
}

const mid = (ys, first) => (ys[first] + (ys[first + 1] ?? ys[first])) / 2;

function drawBox(item, tournament, place, x, y, chosen, choose) {
  const index = between(tournament, place.i, place.j);
  const match = tournament.matches[index];
  const score = (entrant) => (match?.scores ? match.scores[match.i === entrant ? 0 : 1] : null);
  const side = (entrant, dy) => (entrant == null
    ? svg('text', { class: 'bye', x: 10, y: dy }, 'bye')
    : [svg('text', { class: entrant === place.winner ? 'wins' : '', x: 10, y: dy }, `${entrant === place.winner ? '▸ ' : ''}${nameOf(item, entrant)}`),
      svg('text', { class: 'score', x: BOX.width - 10, y: dy }, match ? number(score(entrant), 2) : '')]);
  const behaviour = match ? {
    role: 'button', tabindex: 0, 'data-match': index, 'aria-pressed': String(chosen === index), 'aria-label': describe(item, match),
    onclick: () => choose(index),
    onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(index); } },
  } : {};
  return svg('g', { ...behaviour, class: match ? 'box' : 'box idle', transform: `translate(${x} ${y})` },
    match && svg('title', {}, describe(item, match)), svg('rect', { width: BOX.width, height: BOX.height, rx: 6 }), svg('path', { class: 'split', d: `M0 ${BOX.height / 2}h${BOX.width}` }),
    side(place.i, 16), side(place.j, BOX.height - 8));
}

// One match: what each of its calls said, dimension by dimension, and both together.
function drawMatch(set, item, tournament, index, close) {
  const match = tournament.matches[index];
  const [one, other] = [match.i, match.j];
  const names = [nameOf(item, one), nameOf(item, other)];
  const title = `${fullName(item, one)} against ${fullName(item, other)}`;
  const seen = match.calls.map((call) => (entrant) => (call.first === entrant ? 0 : 1));
  const detailed = match.calls.filter((call) => call.detail);
  const dimensions = Object.entries(detailed[0]?.detail[0] ?? {}).filter(([, score]) => typeof score === 'number').map(([name]) => name);
  const value = (k, dimension, entrant) => {
    const call = match.calls[k];
    return dimension == null ? call.scores?.[seen[k](entrant)] : call.detail?.[seen[k](entrant)][dimension];
  };
  const both = (dimension, entrant) => {
    const values = match.calls.map((_, k) => value(k, dimension, entrant));
    return values.some((score) => score == null) ? null : values.reduce((sum, score) => sum + score, 0);
  };
  const pair = (dimension, a, b) => [a, b].map((score, side) =>
    el('td', { class: score > (side ? a : b) + 1e-6 ? 'number wins' : 'number' }, number(score, dimension == null ? 2 : 1)));
  const row = (dimension) => el('tr', { class: dimension == null ? 'total' : '' }, el('th', { scope: 'row' }, dimension == null ? 'total' : words(dimension)),
    match.calls.map((_, k) => pair(dimension, value(k, dimension, one), value(k, dimension, other))),
    match.calls.length > 1 && pair(dimension, both(dimension, one), both(dimension, other)));
  const heads = [...match.calls.map((call) => `${nameOf(item, call.first)} shown first`), ...(match.calls.length > 1 ? ['both orders'] : [])];
  return el('section', { id: 'match', class: 'card match-detail', tabindex: -1, 'aria-label': `Match: ${title}` },
    el('header', {}, el('h4', {}, title, el('span', { class: 'label' }, set.judge)),
      el('button', { type: 'button', class: 'close', 'aria-label': 'Close the match', onclick: close }, '✕')),
    el('p', {}, verdict(match, names)),
    match.calls.filter((call) => call.error).map((call) => el('p', { class: 'error' }, `Call without a verdict: ${call.error}`)),
    el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Scores' }, el('table', { class: 'scores' },
      el('thead', {}, el('tr', {}, el('td', {}), heads.map((text) => el('th', { scope: 'colgroup', colspan: 2 }, text))),
        el('tr', {}, el('th', { scope: 'col' }, 'dimension'), heads.map(() => names.map((name) => el('th', { scope: 'col', class: 'number' }, name))))),
      el('tbody', {}, dimensions.map(row), row(null)))));
}

function verdict(match, names) {
  if (!match.scores) return 'A call failed, so the match does not count.';
  const [a, b] = match.scores;
  const result = a === b ? `A draw, ${number(a, 2)} each.` : `${names[a > b ? 0 : 1]} wins, ${number(Math.max(a, b), 2)} to ${number(Math.min(a, b), 2)}.`;
  return match.is_flip ? `${result} The two orders name different winners.` : result;
}
