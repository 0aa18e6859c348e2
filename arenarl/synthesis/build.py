"""The state shared by the stages of a build: config, domain, seeds, quotas, LLM client and engines."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import environment_maker
from arenarl.llm.client import open_client
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.synthesis.inspection import Inspector
from arenarl.synthesis.prompts import Cell, refine_messages
from arenarl.synthesis.seeds import SEED, TEST_SEED, Candidate, read_seeds
from arenarl.synthesis.splits import Quotas, assign, quotas_of
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, estimate_tokens, read_jsonl

BUILT = "build.json"  # hashes of the splits, in `data.folder`


class Build:
    """The parts that all stages share. If no wanted stage `asks_models`, API keys are not needed.
    Raises UserError for a missing model or key, a malformed seed, or other data in `data.folder`."""

    def __init__(self, config: Config, asks_models: bool):
        self.config, self.build, self.folder = config, config.build, config.run_dir / "build"
        self.domain = make_domain(config.environment, config.data)
        self.languages = config.build.languages or [config.data.language]
        refuse(config)
        self.seeds = self._read_seeds()
        limits = config.judge if asks_models else replace(config.judge, store_only=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.client = open_client(config.llms_of("build"), limits, f"{config.run_name}/build", self.folder)

    def path(self, name: str) -> Path:
        return self.folder / name

    @cached_property
    def quotas(self) -> Quotas:
        """Quotas for the subtasks of the config, or else for the subtasks of the seeds."""
        subtasks = tuple(self.build.subtasks or dict.fromkeys(seed.cell.subtask for seed in self.seeds))
        return quotas_of(subtasks, self.domain.held_out, self.build, self.config.data)

    @property
    def wanted(self) -> Counter[Cell]:
        """The number of queries to draw from seeds and generators. Test seeds, if any, fill the test split."""
        splits = {name: quota for name, quota in self.quotas.items() if name != "test" or not self.build.test_seeds}
        return sum(splits.values(), Counter())

    @cached_property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        return {language: engine.instances.first.tools for language, engine in self.engines(self.build.teacher).items()}

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.build.inspector, self.client, self.domain, self.tools)

    @cached_property
    def prompt_tokens(self) -> int:
        """Approximate tokens of a prompt that shows the tools."""
        return tokens_of(refine_messages(self.seeds[0].text, self.languages[0], self.tools[self.languages[0]]))

    def engines(self, llm: LLMConfig, kind: type[ApiRolloutEngine] = ApiRolloutEngine) -> dict[str, Any]:
        """Return an engine per language for a model, with the run's tools and budgets."""
        make = partial(environment_maker, self.config.environment, client=self.client, limits=self.config.judge)
        return {name: kind.from_config(self.config, llm, self.client, make(name), name) for name in self.languages}

    @property
    def split_of(self) -> dict[str, list[Query]]:
        """The drawn queries by split."""
        records = read_jsonl(self.path("queries.jsonl"))
        drawn = [(Query(**record["query"]), record["origin"] == TEST_SEED) for record in records]
        return assign(drawn, self.quotas, self.config.data.seed)

    def _read_seeds(self) -> list[Candidate]:
        seeds = []
        for path, origin in ((self.build.seeds, SEED), (self.build.test_seeds, TEST_SEED)):
            for seed in read_seeds(Path(path), self.build.subtasks or (), origin) if path else ():
                if seed.cell.language not in self.languages:
                    problem = f"a seed is in {seed.cell.language}, but build.languages is {', '.join(self.languages)}"
                    raise UserError(f"{path}: {problem}; add the language or drop the seed: {seed.text[:60]}")
                seeds.append(seed)
        return seeds


def tokens_of(messages: Sequence[dict[str, Any]]) -> int:
    """Estimate the tokens of messages."""
    return estimate_tokens(json.dumps(messages, ensure_ascii=False))


def refuse(config: Config) -> None:
    """Raise UserError if the build cannot work with these settings."""
    build, folder = config.build, Path(config.data.folder)
    if build.seeds is None:
        raise UserError("build.seeds is not set; name a file with seed queries, JSONL or one a line (docs/data.md)")
    if build.teacher.name == "embedded":
        remedy = "set build.teacher.name=llm, with model and base_url, such as configs/policies/gpt_4o.yaml"
        raise UserError(f"build.teacher names no model; {remedy}")
    if any(generator.name == "embedded" for generator in build.generators):
        raise UserError("build.generators: a generator names no model; set name: llm, with model and base_url")
    attempts = {"build.attempts": build.attempts, "data.baseline_attempts": config.data.baseline_attempts}
    for key, count in attempts.items():
        if count > 1 and config.judge.train.name == "embedded":
            problem = "judge.train must choose among attempts, but is not an LLM"
            raise UserError(f"{key}={count}: {problem}; name one, or set {key}=1")
    if not (folder / BUILT).is_file() and any(folder.glob("*_queries.jsonl")):
        raise UserError(f"data.folder={folder} holds data that was not built here; name another folder")
