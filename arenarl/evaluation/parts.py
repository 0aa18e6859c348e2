"""Trajectories that were generated before, and whether they still count: until what they were generated with changes.

Verdicts and figures are made anew each time, LLMs' from their store, so an edit of a judge,
a truth or a table costs no generation.
"""

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from arenarl.config.schema import Config, LLMConfig, SearchConfig
from arenarl.llm.prompts import PROMPTS
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.seeds import stable_seed
from arenarl.system.user_input import named
from arenarl.trajectory import Trajectory, read_jsonl, write_jsonl

if TYPE_CHECKING:
    from arenarl.evaluation.evaluation import Case

# What our own code generates. Raise it with every change after which the same policy, query and settings give another
# trajectory: stored ones are then generated again. tests/evaluation/test_parts.py fails until it is raised.
GENERATION = 1


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
    """Hash of all that a policy's trajectories depend on: weights, queries, settings, a folder that is searched,
    prompts of LLMs behind tools, the user's own code, and `GENERATION` for ours.

    A hub id or a model's name stands for its weights.

    `queries` are the files with them, by default the test split's.
    """
    weights = hash_weights(policy) if isinstance(policy, str) else asdict(policy)
    asked = Path(config.data.folder).glob("test_queries.jsonl") if queries is None else queries
    prompts = sorted(path for name in ("search", "tickets") for path in PROMPTS.glob(f"{name}_*.yaml"))
    files = hash_files([*asked, *prompts, *own_code(config.environment.made_of)])
    settings = asdict(config)
    read = {key: settings[key] for key in ("seed", "threads", "policy", "data", "environment", "rollout")}
    folder, turns = policy if isinstance(policy, str) else None, config.test_turns
    searched = _searched(config.environment.search)
    return str(stable_seed(GENERATION, files, folder, weights, read, system_prompt(config), turns, *searched))


def _searched(search: SearchConfig) -> list[str]:
    if search.engine != "folder":
        return []
    from arenarl.domains.research import engines  # only here: it loads trafilatura

    return [engines.fingerprint(Path(search.folder), search.search_chunk_tokens)]


def own_code(names: Iterable[str]) -> list[Path]:
    """The files behind `package.module:Class` or `package.module:function` that are not of this project: all of its
    package, or the module and what it uses of the modules and packages beside it."""
    files: set[Path] = set()
    for name in names:
        if ":" in name:
            named(name, "environment")  # imports it
            _add_code(sys.modules[name.partition(":")[0]], files)
    return sorted(files)


def _add_code(module: ModuleType, files: set[Path]) -> None:
    package, file = sys.modules[module.__name__.partition(".")[0]], Path(module.__file__ or "")
    if package.__name__ == "arenarl" or file in files:
        return
    files.add(file)
    if hasattr(package, "__path__"):
        files |= {path for folder in package.__path__ for path in Path(folder).rglob("*.py")}
    elif "site-packages" not in file.parts:
        for value in vars(module).values():
            used = inspect.getmodule(value)
            if used and file.parent in Path(getattr(used, "__file__", None) or "").parents:
                _add_code(used, files)
