"""Trajectories that were generated before, and whether they still count: until what they were generated with changes.

Verdicts and figures are made anew each time, LLMs' from their store, so an edit of a judge,
a truth or a table costs no generation.
"""

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import TYPE_CHECKING

from arenarl.config.schema import Config, LLMConfig, SearchConfig
from arenarl.domains.environments import environment_class
from arenarl.llm.prompts import PROMPTS
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.repository import ROOT
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Trajectory, read_jsonl, write_jsonl

if TYPE_CHECKING:
    from arenarl.evaluation.evaluation import Case


class Part:
    """A trajectory a query of one checkpoint with one decoding, as it lies on the disk: the cases, then the fingerprint
    that says they are all there.

    `trajectories` are what a finished part need not generate again; None without.
    """

    def __init__(self, cases: Path, fingerprint: str):
        self.cases, self.path, self.fingerprint = cases, cases.with_suffix(".json"), fingerprint
        is_whole = cases.is_file() and read_json(self.path) == {"fingerprint": fingerprint}
        self.trajectories = [Trajectory.from_record(record) for record in read_jsonl(cases)] if is_whole else None

    def write(self, cases: Sequence["Case"]) -> None:
        """Keep the cases, unless they are there as they are.
        Those of stored trajectories may have other findings and verdicts than before."""
        records = [case.to_record() for case in cases]
        if self.trajectories is None:
            self.path.unlink(missing_ok=True)  # the cases are about to differ from it
        elif list(read_jsonl(self.cases)) == records:
            return
        write_jsonl(self.cases, records)
        write_json(self.path, {"fingerprint": self.fingerprint})


def fingerprint(config: Config, policy: str | LLMConfig, queries: Iterable[Path] | None = None) -> str:
    """Hash of all that a policy's trajectories depend on: weights, queries, settings, code, a folder that is searched.

    A hub id or a model's name stands for its weights.

    `queries` are the files with them, by default the test split's.
    """
    weights = hash_weights(policy) if isinstance(policy, str) else asdict(policy)
    asked = Path(config.data.folder).glob("test_queries.jsonl") if queries is None else queries
    paths = [*asked, *generating_files(*config.environment.made_of)]
    settings = asdict(config)
    read = {key: settings[key] for key in ("seed", "threads", "policy", "data", "environment", "rollout")}
    told, searched = system_prompt(config), _searched(config.environment.search)
    return str(
        stable_seed(
            hash_files(paths),
            policy if isinstance(policy, str) else None,
            weights,
            read,
            told,
            config.test_turns,
            *searched,
        )
    )


def _searched(search: SearchConfig) -> list[str]:
    if search.engine != "folder":
        return []
    from arenarl.domains.research import documents  # only here: it loads trafilatura

    return [documents.fingerprint(Path(search.folder), search.search_chunk_tokens)]


@lru_cache
def generating_files(*environments: str) -> tuple[Path, ...]:
    """The code that trajectories depend on, and what it tells LLMs:
    arenarl/rollout, the environments' modules, and all that these import.

    Without arenarl/config and arenarl/system: what a setting is, and how seeds derive, the fingerprint holds itself.
    """
    roots = [
        *(ROOT / "arenarl" / "rollout").glob("*.py"),
        *(Path(inspect.getfile(environment_class(name))) for name in environments),
    ]
    finder = ModuleFinder([str(ROOT)], excludes=["arenarl.config", "arenarl.system"])
    for root in roots:
        finder.run_script(str(root))
    code = {*roots, *(Path(module.__file__) for module in finder.modules.values() if module.__file__)}
    named = {name for path in code for name in re.findall(r'prompt_texts\("(\w+)"', path.read_text(encoding="utf-8"))}
    return tuple(sorted(code | {path for name in named for path in PROMPTS.glob(f"{name}_*.yaml")}))
