// One query: its standings, the tournament, and one or two trajectories turn by turn.

const STOPS = { answer: 'answer', no_answer: 'no answer', max_turns: 'too many turns', max_tokens: 'too many tokens', tool_crash: 'a tool crashed', max_seconds: 'too much time', no_room: 'too long a prompt' };

function drawItem(set, row, item, view, actions) {
  const tournaments = item.tournaments.map((tournament, index) => {
    const chosen = view.match?.tournament === index ? view.match.index : null;
    return [drawTournament(set, item, tournament, chosen, (match) => actions.chooseMatch(index, match)),
      chosen != null && drawMatch(set, item, tournament, chosen, () => actions.chooseMatch(null))];
  });
  const visible = [view.left, view.right].filter((index) => index != null).map((index) => item.entrants[index]);
  return [
    el('header', { class: 'item-head' },
      el('p', { class: 'walk' }, el('button', { type: 'button', class: 'back', onclick: actions.back }, '← list'),
        el('button', { type: 'button', 'aria-label': 'Previous query', onclick: () => actions.walk(-1) }, '‹'),
        el('button', { type: 'button', 'aria-label': 'Next query', onclick: () => actions.walk(1) }, '›'),
        el('span', { class: 'quiet' }, [item.subtask, item.step != null && `step ${item.step}`, item.id].filter(Boolean).join(' · '))),
      el('h2', {}, item.query)),
    drawStandings(set, item, view, actions),
    ...tournaments.flat(),
    el('section', {}, el('h3', {}, 'Trajectories'), visible.length > 1 && drawComparison(visible),
      el('div', { class: 'columns', tabindex: 0, role: 'group', 'aria-label': 'Trajectories' },
        visible.map((entrant) => drawTrajectory(item, entrant, visible.length === 1)))),
  ];
}

function drawStandings(set, item, view, actions) {
  const ranks = item.tournaments[0].ranks;
  const hasTruth = item.entrants.some((entrant) => entrant.quality != null);
  const order = [...item.entrants.keys()].sort((a, b) => (ranks[a] ?? Infinity) - (ranks[b] ?? Infinity) || a - b);
  const chooser = (index, side, sign) => el('button', { type: 'button', class: 'side-button', 'aria-pressed': String(view[side] === index),
    'aria-label': `${item.entrants[index].name} on the ${side}`, onclick: () => actions.show(side, index) }, sign);
  const rows = order.map((index) => {
    const entrant = item.entrants[index];
    const twin = entrant.same_as !== index && el('span', { class: 'quiet twin' }, ` = ${item.entrants[entrant.same_as].name}`);
    return el('tr', {}, figure(ranks[index] == null ? '–' : String(ranks[index])),
      el('th', { scope: 'row' }, el('kbd', { class: 'quiet' }, String(index + 1)), ` ${entrant.name}`, twin),
      hasTruth && figure(number(entrant.quality)),
      set.isTraining ? figure(number(entrant.reward, 2)) : el('td', {}, index > 0 && mark(view.outcomes[index])),
      el('td', {}, STOPS[entrant.stop_reason]),
      el('td', {}, chooser(index, 'left', 'L'), chooser(index, 'right', 'R')));
  });
  return el('section', {},
    el('p', { class: 'caption' }, 'Ranks by the ', el('span', { class: 'label' }, set.judge), hasTruth ? ', 0 is best; quality is noise-free, 0 to 10.' : ', 0 is best.'),
    table('standings', 'Standings', ['rank', 'trajectory', ...(hasTruth ? ['quality'] : []), set.isTraining ? set.value : 'baseline', 'ended', 'show'].map((text) => head(text)), rows));
}

function drawComparison([left, right]) {
  const dimensions = Object.keys(left.dimensions ?? right.dimensions ?? {});
  const percent = (share) => (share == null ? null : 100 * share);
  const met = ({ constraints }) => {
    const all = Object.values(constraints ?? {});
    return all.length ? all.filter(Boolean).length / all.length : null;
  };
  const lines = [
    ['quality', (entrant) => entrant.quality],
    ...dimensions.map((name) => [words(name), (entrant) => entrant.dimensions?.[name]]),
    ['facts grounded, %', (entrant) => percent(entrant.groundedness)],
    ['constraints met, %', (entrant) => percent(met(entrant))],
    ...Object.keys(left.figures ?? right.figures ?? {}).map((name) => [`${words(name)}, %`, (entrant) => entrant.figures?.[name]]),
    ['tool calls', (entrant) => entrant.turns.reduce((sum, turn) => sum + turn.tool_calls.length, 0)],
  ].map(([name, value]) => [name, value(left), value(right)]).filter(([, a, b]) => a != null || b != null);
  const lead = (a, b) => (a == null || b == null ? '–' : `${a > b ? '+' : ''}${number(a - b)}`);
  const rows = lines.map(([name, a, b]) => el('tr', {}, el('th', { scope: 'row' }, name), figure(number(a)), figure(number(b)), figure(lead(a, b))));
  const heads = [el('td', {}), ...[left.name, right.name, 'left − right'].map((text) => head(text, { class: 'number' }))];
  const hasTruth = [left, right].some((entrant) => entrant.quality != null);
  return [el('p', { class: 'caption' }, hasTruth ? 'Noise-free, from the domain’s truth.' : 'No truth is known.'), table('comparison', 'Comparison', heads, rows)];
}

function drawTrajectory(item, entrant, isAlone) {
  const facts = entrant.quality == null ? [] : [`quality ${number(entrant.quality)}`];
  if (entrant.groundedness != null) facts.push(`${number(100 * entrant.groundedness, 0)} % grounded`);
  if (!entrant.valid) facts.push(`invalid: ${STOPS[entrant.stop_reason]}`);
  const constraints = Object.entries(entrant.constraints ?? {}).map(([name, isMet]) =>
    el('li', { class: isMet ? 'met' : 'missed' }, `${isMet ? '✓' : '✕'} ${words(name)}`));
  const dimensions = Object.entries(entrant.dimensions ?? {}).map(([name, score]) => `${words(name)} ${number(score)}`);
  return el('section', { class: 'trajectory', 'aria-label': entrant.name },
    el('header', {}, el('h4', {}, entrant.name), el('p', { class: 'quiet' }, facts.join(' · ')),
      constraints.length > 0 && el('ul', { class: 'constraints', 'aria-label': 'Constraints' }, constraints)),
    isAlone && dimensions.length > 0 && el('p', { class: 'quiet' }, dimensions.join(' · ')),
    el('ol', { class: 'turns' }, entrant.turns.map(drawTurn)));
}

function drawTurn(turn, index) {
  const results = turn.observations.map((text) => part(text.startsWith('Error') ? 'result error' : 'result', 'result', text));
  return el('li', { class: 'turn' },
    el('p', { class: 'turn-number' }, `turn ${index + 1}`),
    turn.thought && part('thought', 'thought', turn.thought),
    turn.text && !turn.tool_calls.length && part('text', 'text without an answer', turn.text),
    turn.tool_calls.map((call, k) => [
      part('call', `calls ${call.name || 'an unreadable tool'}`, drawArguments(call.arguments)), results[k]]),
    results.slice(turn.tool_calls.length),
    turn.answer != null && part('answer', 'answer', turn.answer));
}

const part = (kind, label, content) => el('div', { class: `part ${kind}` }, el('span', { class: 'part-label' }, label),
  typeof content === 'string' ? el('pre', {}, content) : content);

function drawArguments(args) {
  if (typeof args === 'string') return el('pre', {}, args);
  return el('dl', { class: 'arguments' }, Object.entries(args).map(([name, value]) =>
    [el('dt', {}, name), el('dd', {}, typeof value === 'string' ? value : JSON.stringify(value))]));
}
