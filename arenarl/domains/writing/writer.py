"""The data of the writing domain: a scripted writer's texts, stored baselines, and the splits.

As the other domains' teachers, it is of deliberately mixed quality: each good habit is off more often than on, at times
all are on, so that SFT teaches all it takes to write well and leaves it to RL to choose that. DeepWriting-20K stands in
its place at the paper's scale.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arenarl.config.schema import DataConfig
from arenarl.domains.domain import median_of, teacher_skills
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.writing.lexicon import LEXICONS
from arenarl.domains.writing.queries import SUBTASKS, make_queries, sentences_each
from arenarl.domains.writing.truth import examine
from arenarl.trajectory import Query, Trajectory, assistant_message, prompt_messages

HABITS = ("outline", "quote", "words", "tone", "measure", "vary")
# outline: all sections, in the order of the query · quote: the facts as given, not typical ones · words: those asked
# for, none forbidden · tone: the one asked for · measure: as long as asked · vary: says nothing twice
_TOO_MANY = 4  # sentences of a section beyond those that the length asks for, at most


def solve(query: Query, rng: random.Random, skill: float) -> Trajectory:
    """The writer's text, with each habit with probability `skill`; the same random state gives the same text."""
    return write(query, {habit: rng.random() < skill for habit in HABITS}, rng.random())


def write(query: Query, habits: dict[str, bool], seed: float) -> Trajectory:
    """The text of a writer with these habits; what a habit does not touch is the same without it."""
    wanted, rngs = query.constraints, {habit: random.Random(f"{seed}:{habit}") for habit in HABITS}
    outline = list(range(len(wanted["sections"])))
    if not habits["outline"]:  # the last is missing, or they stand in reverse
        outline = outline[:-1] if rngs["outline"].random() < 0.5 else outline[::-1]
    each = sentences_each(query)
    if not habits["measure"]:  # too few sentences, or too many
        each = rngs["measure"].choice([number for number in range(1, each + _TOO_MANY + 1) if number != each])
    room = len(wanted["sections"]) * (each - 1)  # sentences besides the facts
    with_words = _with_words(query, habits["words"], rngs["words"])
    sentences = iter([*with_words, *_in_tone(query, habits, rngs, room - len(with_words))])
    between, lines = "" if query.language == "zh" else " ", [wanted["topic"]]
    for number in outline:
        stated = _stated(query, number, habits["quote"])
        lines += [wanted["sections"][number], between.join([stated, *(next(sentences) for _ in range(each - 1))])]
    text = "\n".join(lines)
    message = assistant_message(f"<think>\n{_thought(query, habits, each)}\n</think>\n\n<answer>\n{text}\n</answer>")
    return Trajectory(query.query_id, [*prompt_messages(query), message], "answer", meta={"habits": habits})


def _stated(query: Query, number: int, is_careful: bool) -> str:
    """The fact of a section; careless, a typical one."""
    wanted, kinds = query.constraints, {kind.section: kind for kind in LEXICONS[query.language].facts}
    kind = kinds[wanted["sections"][number]]
    return kind.sentence.format(wanted["facts"][number] if is_careful else kind.form.format(kind.numbers[0]))


def _with_words(query: Query, is_careful: bool, rng: random.Random) -> list[str]:
    """A sentence for each word that is asked for; careless, with any others, the forbidden ones twice as likely."""
    lexicon, wanted = LEXICONS[query.language], query.constraints
    others = [*wanted["avoid"], *(word for word in lexicon.words if word not in wanted["must"])]
    any_words = rng.sample(others, len(wanted["must"]))
    words = wanted["must"] if is_careful else any_words
    return [frame.format(word) for frame, word in zip(rng.sample(lexicon.with_word, len(words)), words, strict=True)]


def _in_tone(query: Query, habits: dict[str, bool], rngs: dict[str, random.Random], count: int) -> list[str]:
    """So many sentences of the tone, or of another one; without the habit to vary always the same."""
    lexicon, tone = LEXICONS[query.language], query.constraints["tone"]
    other = rngs["tone"].choice([one for one in lexicon.tones if one != tone])
    known = lexicon.tones[tone if habits["tone"] else other]
    order = rngs["vary"].sample(range(len(known)), len(known))
    order = order if habits["vary"] else order[:1]
    return [known[order[number % len(order)]] for number in range(count)]


def _thought(query: Query, habits: dict[str, bool], each: int) -> str:
    """The plan: what the habits attend to, each in its words."""
    lexicon, wanted = LEXICONS[query.language], query.constraints
    words = [*wanted["must"], *(lexicon.no_word.format(word) for word in wanted["avoid"])]
    plans = {
        "outline": lexicon.comma.join(wanted["sections"]), "quote": lexicon.comma.join(wanted["facts"]),
        "words": lexicon.comma.join(words), "tone": wanted["tone"],
        "measure": lexicon.plan.format(each), "vary": lexicon.no_repeats,
    }  # fmt: skip
    return "; ".join(plans[habit] for habit in HABITS if habits[habit]) or lexicon.write


def median(query: Query, rng: random.Random, skill: float, attempts: int) -> Trajectory:
    """The text of median quality of so many."""
    solved = [solve(query, rng, skill) for _ in range(attempts)]
    total = domain_rubric(query.domain, query.language).total
    return median_of(solved, [total(examine(query, trajectory.messages).dimensions()) for trajectory in solved])


def writing_splits(config: DataConfig, watch: Callable[[list], Iterable] = iter) -> Iterator[tuple[str, list[Any]]]:
    """The splits by file name: test queries, stored baselines, RL queries, SFT trajectories,
    each spread over the subtasks.

    `watch` hands on the queries that the writer answers, one by one, which is what takes the time.
    """
    taken, seed = set(), f"writing{config.seed}"

    def draw(split: str, count: int) -> list[Query]:
        drawn = []
        for index, subtask in enumerate(SUBTASKS):
            size = count // len(SUBTASKS) + (index < count % len(SUBTASKS))
            drawn += make_queries(subtask, config.language, size, f"{seed}-{split}", taken)
        random.Random(f"{seed}-{split}").shuffle(drawn)
        return drawn

    test = draw("test", len(SUBTASKS) * config.test_per_subtask)
    rl, sft = draw("rl", config.rl_size), draw("sft", config.sft_size)
    yield "test_queries", test
    rng = random.Random(f"{seed}-baselines")
    baselines = [median(query, rng, config.baseline_skill, config.baseline_attempts) for query in watch(test)]
    yield "test_baselines", [baseline.to_record() for baseline in baselines]
    yield "rl_queries", rl
    rng = random.Random(f"{seed}-teacher")
    skills = teacher_skills(config, rng, len(sft))
    yield "sft", [solve(query, rng, skill).to_record() for query, skill in zip(watch(sft), skills, strict=True)]
