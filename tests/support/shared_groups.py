"""Three groups, the ranks that every trainer's integration must give them, and a real judge server that scores answers
by their number."""

import json
from contextlib import contextmanager

from judge_servers import by_prompt, completion, raw, serving, write_judge

from arenarl.judges.prompts import read_prompt
from arenarl.rank import Ranker

GROUPS = [
    ("Name a number.", ["3", "9", "7", "1"]),
    ("Name another.", ["5", "5", "2", " "]),
    ("One more?", ["8", "x", "4", "6"]),
]
RANKS = [[2.0, 0.0, 1.0, 3.0], [0.5, 0.5, 2.0, 3.0], [0.0, None, 2.0, 1.0]]
REWARDS = [[1 / 3, 1.0, 2 / 3, 0.0], [5 / 6, 5 / 6, 1 / 3, 0.0], [1.0, None, 0.0, 0.5]]
OPTIONS = {"rubric": "a high number", "topology": "round_robin", "max_failure_share": 1.0}


def score(prompt, _):
    """Reply with the numbers of both answers; refuse a pair in which one is not a number."""
    answers = [turns[-1].answer for turns in read_prompt([{}, {"content": prompt}]).agents]
    if not all(answer.isdecimal() for answer in answers):
        return raw(b"{}", status=400)
    return completion(json.dumps({f"agent_{k}": {"quality": int(answer)} for k, answer in enumerate(answers, start=1)}))


@contextmanager
def judge_file(folder):
    """Serve the judge, and yield the YAML that names it."""
    with serving(by_prompt(score)) as url:
        yield write_judge(folder, url, price_in=1.0, price_out=1.0)


@contextmanager
def ranking(folder):
    with judge_file(folder) as judge:
        yield Ranker(judge, store=folder / "replies.sqlite", **OPTIONS)
