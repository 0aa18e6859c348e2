"""A run's training data under way: its config and domain, its seeds and what they are to become,
and the models that work on it."""

from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import environment_maker
from arenarl.llm.client import LLMClient, open_client
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.synthesis.estimates import tokens_of
from arenarl.synthesis.prompts import refine_messages
from arenarl.synthesis.queries import TEST_SEED, Drawn
from arenarl.synthesis.quotas import Quotas, assign, quotas_of
from arenarl.synthesis.seeds import Candidate, read_seeds
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
        self.client: LLMClient = open_client(
            config.llms_of("build"), limits, f"{config.run_name}/build", self._made_folder()
        )

    def path(self, name: str) -> Path:
        return self.folder / name

    @cached_property
    def subtasks(self) -> tuple[str, ...]:
        """Those that are to be filled, in the order of the config, or else of the seeds."""
        return tuple(self.build.subtasks or dict.fromkeys(seed.cell.subtask for seed in self.seeds))

    @cached_property
    def quotas(self) -> Quotas:
        return quotas_of(self.subtasks, self.domain.held_out, self.build, self.config.data)

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
        return {
            language: kind.from_config(self.config, llm, self.client, make(language), language)
            for language in self.languages
        }

    @property
    def split_of(self) -> dict[str, list[Query]]:
        drawn = [Drawn.from_record(record) for record in read_jsonl(self.path("queries.jsonl"))]
        return assign([(one.query, one.origin == TEST_SEED) for one in drawn], self.quotas, self.config.data.seed)

    def _made_folder(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def _read_seeds(self) -> list[Candidate]:
        read = partial(read_seeds, subtasks=self.build.subtasks or ())
        seeds = read(Path(self.build.seeds)) + (
            read(Path(self.build.test_seeds), origin=TEST_SEED) if self.build.test_seeds else []
        )
        if foreign := [seed for seed in seeds if seed.cell.language not in self.languages]:
            wanted = f"build.languages is {', '.join(self.languages)}"
            path = self.build.test_seeds if foreign[0].origin == TEST_SEED else self.build.seeds
            raise UserError(
                f"{path}: a seed is in {foreign[0].cell.language}, and {wanted}; "
                f"add the language: {foreign[0].text[:60]}"
            )
        return seeds


def refuse(config: Config) -> None:
    build, folder = config.build, Path(config.data.folder)
    if build.seeds is None:
        raise UserError("build.seeds is not set; name a file with seed queries, JSONL or one a line (docs/data.md)")
    if build.teacher.name == "embedded":
        raise UserError(
            "build.teacher names no model; set build.teacher.name=llm, with model and base_url, "
            "such as configs/policies/gpt_4o.yaml"
        )
    if any(generator.name == "embedded" for generator in build.generators):
        raise UserError("build.generators: each needs name: llm, with model and base_url")
    for key, attempts in {
        "build.attempts": build.attempts,
        "data.baseline_attempts": config.data.baseline_attempts,
    }.items():
        if attempts > 1 and config.judge.train.name == "embedded":
            raise UserError(
                f"{key}={attempts}: judge.train chooses among them, and is no LLM; name one, or set {key}=1"
            )
    if not (folder / BUILT).is_file() and any(folder.glob("*_queries.jsonl")):
        raise UserError(f"data.folder={folder} holds data that was not built here; name another folder")
