"""The scripted writer, who answers the writing tasks and writes stored baselines.

Like the other domains' teachers, it is of deliberately mixed quality: each good habit is off more often than on, and
sometimes all are on. SFT thus shows all that good writing takes, and RL has to learn to do it every time. At the
paper's scale, DeepWriting-20K replaces the writer.
"""

import random

from arenarl.domains.writing.lexicon import LEXICONS
from arenarl.domains.writing.queries import sentences_each
from arenarl.trajectory import Query, Trajectory, answer_message, prompt_messages

HABITS = ("outline", "quote", "words", "tone", "measure", "vary")
# outline: write all sections, in the query's order · quote: state the given facts, not typical ones · words: use all
# words to use and none to avoid · tone: keep the given tone · measure: keep the given length · vary: repeat no sentence
_MAX_EXTRA = 4  # further sentences per section, if the length is not kept


def solve(query: Query, rng: random.Random, skill: float) -> Trajectory:
    """Return a text of the writer; each habit is on with probability `skill`. Equal random states give equal texts."""
    return write(query, {habit: rng.random() < skill for habit in HABITS}, rng.random())


def write(query: Query, habits: dict[str, bool], seed: float) -> Trajectory:
    """Return the text of a writer with these habits. Each habit changes only its own part of the text."""
    constraints, rngs = query.constraints, {habit: random.Random(f"{seed}:{habit}") for habit in HABITS}
    outline = list(range(len(constraints["sections"])))
    if not habits["outline"]:  # drop the last section, or reverse the order
        outline = outline[:-1] if rngs["outline"].random() < 0.5 else outline[::-1]
    each = sentences_each(query)
    if not habits["measure"]:  # too few sentences, or too many
        each = rngs["measure"].choice([number for number in range(1, each + _MAX_EXTRA + 1) if number != each])
    room = len(constraints["sections"]) * (each - 1)  # sentences besides the facts
    with_words = _with_words(query, habits["words"], rngs["words"])
    sentences = iter([*with_words, *_in_tone(query, habits, rngs, room - len(with_words))])
    between, lines = "" if query.language == "zh" else " ", [constraints["topic"]]
    for number in outline:
        stated = _fact_sentence(query, number, habits["quote"])
        lines += [constraints["sections"][number], between.join([stated, *(next(sentences) for _ in range(each - 1))])]
    message = answer_message(_thought(query, habits, each), "\n".join(lines))
    return Trajectory(query.query_id, [*prompt_messages(query), message], "answer", meta={"habits": habits})


def _fact_sentence(query: Query, number: int, is_careful: bool) -> str:
    """Return the sentence with a section's fact; a careless writer states a typical fact instead."""
    constraints, kinds = query.constraints, {kind.section: kind for kind in LEXICONS[query.language].facts}
    kind = kinds[constraints["sections"][number]]
    return kind.sentence.format(constraints["facts"][number] if is_careful else kind.form.format(kind.numbers[0]))


def _with_words(query: Query, is_careful: bool, rng: random.Random) -> list[str]:
    """Return sentences with the words to use; a careless writer uses other words, most likely the words to avoid."""
    lexicon, constraints = LEXICONS[query.language], query.constraints
    others = [*constraints["avoid"], *(word for word in lexicon.words if word not in constraints["must"])]
    any_words = rng.sample(others, len(constraints["must"]))
    words = constraints["must"] if is_careful else any_words
    return [frame.format(word) for frame, word in zip(rng.sample(lexicon.with_word, len(words)), words, strict=True)]


def _in_tone(query: Query, habits: dict[str, bool], rngs: dict[str, random.Random], count: int) -> list[str]:
    """Return `count` sentences of the tone, or of another tone; without the habit `vary`, one sentence repeated."""
    lexicon, tone = LEXICONS[query.language], query.constraints["tone"]
    other = rngs["tone"].choice([name for name in lexicon.tones if name != tone])
    sentences = lexicon.tones[tone if habits["tone"] else other]
    order = rngs["vary"].sample(range(len(sentences)), len(sentences))
    order = order if habits["vary"] else order[:1]
    return [sentences[order[number % len(order)]] for number in range(count)]


def _thought(query: Query, habits: dict[str, bool], each: int) -> str:
    """Return the thinking: a plan with one item per active habit."""
    lexicon, constraints = LEXICONS[query.language], query.constraints
    words = [*constraints["must"], *(lexicon.no_word.format(word) for word in constraints["avoid"])]
    plans = {
        "outline": lexicon.comma.join(constraints["sections"]), "quote": lexicon.comma.join(constraints["facts"]),
        "words": lexicon.comma.join(words), "tone": constraints["tone"],
        "measure": lexicon.plan.format(each), "vary": lexicon.no_repeats,
    }  # fmt: skip
    return "; ".join(plans[habit] for habit in HABITS if habits[habit]) or lexicon.write
