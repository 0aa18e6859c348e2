// One query: its standings, the tournament, and one or two trajectories turn by turn.

const STOPS = { answer: 'answer', no_answer: 'no answer', max_turns: 'too many turns', max_tokens: 'too many tokens' };

function drawItem(set, row, item, view, actions) {
  const tournaments = item.tournaments.map((tournament, index) => {
    const chosen = view.match?.tournament === index ? view.match.index : null;
    return [drawTournament(set, item, tournament, chosen, (match) => actions.chooseMatch(index, match)),
      chosen != null && drawMatch(set, item, tournament, chosen, () => actions.chooseMatch(null))];
  });
  const shownEntrants = [view.left, view.right].filter((index) => index != null).map((index) => item.entrants[index]);
  return [
    el('header', { class: 'item-head' },
      el('p', { class: 'walk' }, el('button', { type: 'button', class: 'back', onclick: actions.back }, '← list'),
        el('button', { type: 'button', 'aria-label': 'Previous query', onclick: () => actions.walk(-1) }, '‹'),
        el('button', { type: 'button', 'aria-label': 'Next query', onclick: () => actions.walk(1) }, '›'),
        el('span', { class: 'quiet' }, [item.subtask, item.step == null ? null : `step ${item.step}`, item.id].filter((text) => text != null).join(' · '))),
      el('h2', {}, item.query)),
    drawStandings(set, item, view, actions),
    ...tournaments.flat(),
    el('section', {}, el('h3', {}, 'Trajectories'), shownEntrants.length > 1 && drawComparison(shownEntrants),
      el('div', { class: 'columns', tabindex: 0, role: 'group', 'aria-label': 'Trajectories' },
        shownEntrants.map((entrant) => drawTrajectory(item, entrant, shownEntrants.length === 1)))),
  ];
}

function drawStandings(set, item, view, actions) {
  const ranks = item.tournaments[0].ranks;
  const order = item.entrants.map((_, index) => index).sort((a, b) => (ranks[a] ?? Infinity) - (ranks[b] ?? Infinity) || a - b);
  const chooser = (index, side, sign) => el('button', { type: 'button', class: 'side-button', 'aria-pressed': String(view[side] === index),
    'aria-label': `${item.entrants[index].name} on the ${side}`, onclick: () => actions.show(side, index) }, sign);
  const columns = ['rank', 'trajectory', 'quality', set.isTraining ? 'reward' : 'baseline', 'ended', 'show'];
  return el('section', {}, el('p', { class: 'caption' }, 'Ranks by the ', el('span', { class: 'label' }, set.judge), '; quality is noise-free, 0 to 10.'),
    el('div', { class: 'scroll' }, el('table', { class: 'standings', 'aria-label': 'Standings' },
    el('thead', {}, el('tr', {}, columns.map((text) => el('th', { scope: 'col' }, text)))),
    el('tbody', {}, order.map((index) => {
      const entrant = item.entrants[index];
      const twin = entrant.same_as !== index ? ` = ${item.entrants[entrant.same_as].name}` : '';
      return el('tr', {},
        el('td', { class: 'number' }, ranks[index] == null ? '–' : String(ranks[index] + 1)),
        el('th', { scope: 'row' }, el('kbd', { class: 'quiet' }, String(index + 1)), ` ${entrant.name}`, el('span', { class: 'quiet twin' }, twin)),
        el('td', { class: 'number' }, number(entrant.quality)),
        el('td', {}, set.isTraining ? number(entrant.reward, 2) : index > 0 && mark(view.outcomes[index])),
        el('td', {}, STOPS[entrant.stop_reason]),
        el('td', {}, chooser(index, 'left', 'L'), chooser(index, 'right', 'R')));
    })))));
}

function drawComparison(entrants) {
  const dimensions = Object.keys(entrants[0].dimensions ?? entrants[1].dimensions ?? {});
  const share = (value) => (value == null ? null : 100 * value);
  const met = (entrant) => (entrant.constraints && Object.keys(entrant.constraints).length ? entrant.constraints : null);
  const calls = (entrant) => entrant.turns.reduce((sum, turn) => sum + turn.tool_calls.length, 0);
  const rows = [
    ['quality', entrants.map((entrant) => entrant.quality)],
    ...dimensions.map((name) => [words(name), entrants.map((entrant) => entrant.dimensions?.[name])]),
    ['facts grounded, %', entrants.map((entrant) => share(entrant.groundedness))],
    ['constraints met, %', entrants.map((entrant) => met(entrant) && share(Object.values(met(entrant)).filter(Boolean).length / Object.keys(met(entrant)).length))],
    ['tool calls', entrants.map(calls)],
  ].filter(([, values]) => values.some((value) => value != null));
  return [el('p', { class: 'caption' }, 'Noise-free, from the world’s truth.'), el('div', { class: 'scroll' }, el('table', { class: 'comparison', 'aria-label': 'Comparison' },
    el('thead', {}, el('tr', {}, el('td', {}), entrants.map((entrant) => el('th', { scope: 'col', class: 'number' }, entrant.name)), el('th', { scope: 'col', class: 'number' }, 'left − right'))),
    el('tbody', {}, rows.map(([name, [a, b]]) => el('tr', {}, el('th', { scope: 'row' }, name), el('td', { class: 'number' }, number(a)), el('td', { class: 'number' }, number(b)),
      el('td', { class: 'number' }, a == null || b == null ? '–' : `${a > b ? '+' : ''}${number(a - b)}`))))))];
}

function drawTrajectory(item, entrant, alone) {
  const constraints = Object.entries(entrant.constraints ?? {}).map(([name, isMet]) =>
    el('li', { class: isMet ? 'met' : 'missed' }, `${isMet ? '✓' : '✕'} ${words(name)}`));
  return el('section', { class: 'trajectory', 'aria-label': entrant.name },
    el('header', {}, el('h4', {}, entrant.name), el('p', { class: 'quiet' },
      [`quality ${number(entrant.quality)}`, entrant.groundedness == null ? null : `${number(100 * entrant.groundedness, 0)} % grounded`,
        entrant.valid ? null : `invalid: ${STOPS[entrant.stop_reason]}`].filter(Boolean).join(' · ')),
    constraints.length > 0 && el('ul', { class: 'constraints', 'aria-label': 'Constraints' }, constraints)),
    alone && entrant.dimensions && el('p', { class: 'quiet' }, Object.entries(entrant.dimensions).map(([name, score]) => `${words(name)} ${number(score)}`).join(' · ')),
    el('ol', { class: 'turns' }, entrant.turns.map((turn, index) => drawTurn(turn, index))));
}

function drawTurn(turn, index) {
  return el('li', { class: 'turn' },
    el('p', { class: 'turn-number' }, `turn ${index + 1}`),
    turn.thought && part('thought', 'thought', turn.thought),
    turn.text && !turn.tool_calls.length && part('text', 'text without an answer', turn.text),
    turn.tool_calls.map((call, k) => [
      part('call', `calls ${call.name || 'a tool that cannot be read'}`, drawArguments(call.arguments)),
      k < turn.observations.length && part(turn.observations[k].startsWith('Error') ? 'result error' : 'result', 'result', turn.observations[k]),
    ]),
    turn.answer != null && part('answer', 'answer', turn.answer));
}

const part = (kind, label, content) => el('div', { class: `part ${kind}` }, el('span', { class: 'part-label' }, label),
  typeof content === 'string' ? el('pre', {}, content) : content);

function drawArguments(args) {
  if (typeof args === 'string') return el('pre', {}, args);
  return el('dl', { class: 'arguments' }, Object.entries(args).map(([name, value]) =>
    [el('dt', {}, name), el('dd', {}, typeof value === 'string' ? value : JSON.stringify(value))]));
}
