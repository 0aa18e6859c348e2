"""A run's training data under way: its config and domain, its seeds and what they are to become,
and the models that work on it."""

from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import environment_maker
from arenarl.llm.client import open_client
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.synthesis.estimates import tokens_of
from arenarl.synthesis.prompts import refine_messages
from arenarl.synthesis.seeds import SEED, TEST_SEED, Candidate, read_seeds
from arenarl.synthesis.splits import Quotas, assign, quotas_of
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_jsonl

BUILT = "build.json"  # beside the splits: their hashes


class Build:
    """A run's training data under way.

    Args:
        asks_models: a stage is to be run that asks one, for which the models' keys are read.

    Raises:
        UserError: the config lacks somebody who is needed, a key is not set, a seed cannot be read,
            or `data.folder` holds other data.
    """

    def __init__(self, config: Config, asks_models: bool = True):
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
        """For the subtasks of the config, or else of the seeds, in their order."""
        subtasks = tuple(self.build.subtasks or dict.fromkeys(seed.cell.subtask for seed in self.seeds))
        return quotas_of(subtasks, self.domain.held_out, self.build, self.config.data)

    @cached_property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        return {language: engine.instances.kind.tools for language, engine in self.engines(self.build.teacher).items()}

    @cached_property
    def prompt_tokens(self) -> float:
        """Of a prompt that shows the tools, about."""
        return tokens_of(refine_messages(self.seeds[0].text, self.languages[0], self.tools[self.languages[0]]))

    def engines(self, llm: LLMConfig, kind: type[ApiRolloutEngine] = ApiRolloutEngine) -> dict[str, Any]:
        """By language, a model with the run's tools and budgets."""
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
                    problem = f"a seed is in {seed.cell.language}, and build.languages is {', '.join(self.languages)}"
                    raise UserError(f"{path}: {problem}; add the language: {seed.text[:60]}")
                seeds.append(seed)
        return seeds


def refuse(config: Config) -> None:
    """Raises UserError if the build cannot work with these settings."""
    build, folder = config.build, Path(config.data.folder)
    if build.seeds is None:
        raise UserError("build.seeds is not set; name a file with seed queries, JSONL or one a line (docs/data.md)")
    if build.teacher.name == "embedded":
        needs = "set build.teacher.name=llm, with model and base_url, such as configs/policies/gpt_4o.yaml"
        raise UserError(f"build.teacher names no model; {needs}")
    if any(generator.name == "embedded" for generator in build.generators):
        raise UserError("build.generators: each needs name: llm, with model and base_url")
    attempts = {"build.attempts": build.attempts, "data.baseline_attempts": config.data.baseline_attempts}
    for key, count in attempts.items():
        if count > 1 and config.judge.train.name == "embedded":
            problem = "judge.train chooses among them, and is no LLM"
            raise UserError(f"{key}={count}: {problem}; name one, or set {key}=1")
    if not (folder / BUILT).is_file() and any(folder.glob("*_queries.jsonl")):
        raise UserError(f"data.folder={folder} holds data that was not built here; name another folder")
