"""A judge for callers without a run's config: `tournament_reward`, and `rank_group` with its command.

The judge is a name in configs/judges, a YAML file of that form, or an instance of the user's own class.
"""

import os
from pathlib import Path
from typing import Any

from arenarl.config.schema import JudgesConfig
from arenarl.domains.rubrics import RUBRICS, Rubric, read_rubric, rubric_in_words
from arenarl.judges.judge import Judge
from arenarl.judges.llm import LLMJudge
from arenarl.judges.own import OwnJudge
from arenarl.llm.client import LLMClient, open_client
from arenarl.system.errors import UserError, did_you_mean
from arenarl.system.repository import CONFIGS


def judge_keys(caller: str, judge: str | Path | Judge) -> dict[str, Any]:
    """Return the judge's part of the config's section `judge`.
    Raises UserError, starting with `caller`, for an invalid judge."""
    if isinstance(judge, str | Path):
        path = Path(judge)
        if ":" in path.name and not path.exists():
            raise UserError(
                f"{caller}: judge={str(judge)!r:.100} is not a file: to take your own class, write a YAML file with "
                f"the line name: {judge!s:.100} and pass the file, or pass an instance in Python"
            )
        if path.name != str(judge) or path.suffix:
            return {"train": {"base": str(path)}}
        names = sorted(file.stem for file in (CONFIGS / "judges").glob("*.yaml"))
        if path.name not in names:
            names.remove("embedded")  # `open_judge` refuses it
            raise UserError(
                f"{caller}: judge={path.name:.100} is unknown{did_you_mean(path.name, names)}; choose a YAML file "
                f"or a name of configs/judges: {', '.join(names)}"
            )
        return {"train": {"base": str(CONFIGS / "judges" / f"{path}.yaml")}}
    if isinstance(judge, type) or not hasattr(judge, "compare"):
        raise UserError(
            f"{caller}: judge={judge!r:.100} is not a judge: pass a name from configs/judges, "
            "or an instance with an async method compare"
        )
    return {}


def open_judge(
    caller: str, judge: str | Path | Judge, rubric: str | Path | None, language: str, section: JudgesConfig, stage: str,
    client: LLMClient | None = None,
) -> tuple[Judge, LLMClient | None]:  # fmt: skip
    """Return the judge and the client that makes its calls; an own judge has no client.

    `rubric` is a YAML file as in configs/rubrics, or the criteria in words; None takes the rubric of writing. `section`
    is the config with `judge_keys`, `stage` the store's name for the spending. Without a `client`, opens one. Raises
    UserError if the judge cannot work.
    """
    if not isinstance(judge, str | Path):
        _check_own(caller, rubric, section)
        return OwnJudge(judge, type(judge).__name__), None
    config = section.train
    if config.name == "embedded":
        raise UserError(
            f"{caller}: the embedded judge works only in this project's own worlds; "
            "choose another file of configs/judges, or pass a Judge"
        )
    if config.query_rubrics:
        raise UserError(
            f"{caller}: judge.query_rubrics needs queries with ids, which prompts lack; pass rubric as words or a file"
        )
    if config.name != "llm":
        _check_own(caller, rubric, section)
        return OwnJudge.of(config), None
    client, chosen = client or open_client([config], section, stage), _rubric(caller, rubric, language)
    return LLMJudge(config, client, lambda query: chosen), client


def _check_own(caller: str, rubric: str | Path | None, section: JudgesConfig) -> None:
    """Raise UserError for options that an own judge would ignore."""
    if rubric is not None:
        raise UserError(f"{caller}: your own judge contains its rubric; leave rubric out")
    if section.max_calls is not None or section.max_cost is not None:
        raise UserError(f"{caller}: max_calls and max_cost do not limit your own judge's calls; leave them out")


def _rubric(caller: str, rubric: str | Path | None, language: str) -> Rubric:
    if language not in ("en", "zh"):
        raise UserError(f"{caller}: language={language!r}: choose en or zh")
    if rubric is None:
        return read_rubric(RUBRICS / f"writing_{language}.yaml")
    if isinstance(rubric, Path) or rubric.endswith((".yaml", ".yml")):
        return read_rubric(Path(rubric))
    if os.path.isfile(rubric):  # unlike Path.is_file, accepts a text of any length
        problem = f"rubric={rubric} is a file, but not a YAML like those in configs/rubrics"
        raise UserError(f"{caller}: {problem}; write it as YAML, or pass its words")
    return rubric_in_words(rubric)
