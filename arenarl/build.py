"""From a config to the parts that scripts put together: environment, domain, judges, queries, baselines, engine, LoRA.

One plain function a part, so that a script reads as a list of what it uses. What does not fit the config (an empty split, an
unknown subtask) is refused here, before any training.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import PreTrainedTokenizerBase

from arenarl.config.load import named_class
from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.domains.domain import Domain, make_domain, needs
from arenarl.domains.environments import make_environment
from arenarl.domains.known_answers import has_answer
from arenarl.domains.rubrics import Rubric
from arenarl.evaluation.evaluation import CurveRecorder
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import Examiner, Judge, cached_examiner
from arenarl.judges.llm import LLMJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import LLMClient, read_keys
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.environment import Environment
from arenarl.rollout.generation import Generator, TransformersGenerator
from arenarl.rollout.policy import load_model
from arenarl.rollout.vllm_generation import VLLMGenerator, load_engine, require_vllm
from arenarl.rollout.vllm_server import ServerGenerator, VLLMServer
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory, read_jsonl, read_queries


def build_environment(config: Config, client: LLMClient | None = None) -> Environment:
    """The tool set that `environment.name` names; simulated tools that ask an LLM need the client."""
    return make_environment(config.environment, config.data.language, client)


def build_engine(
    config: Config, tokenizer: PreTrainedTokenizerBase, model: Any = None, client: LLMClient | None = None
) -> RolloutEngine:
    """A rollout engine on the back end that `rollout.backend` names; in RL the trainer lends it the model."""
    generator = _build_generator(config, tokenizer, model)
    environment = build_environment(config, client)
    return RolloutEngine(generator, tokenizer, lambda: environment, config.rollout, config.environment.schemas_in_prompt)


def _build_generator(config: Config, tokenizer: PreTrainedTokenizerBase, model: Any) -> Generator:
    if config.rollout.backend == "vllm":
        return VLLMGenerator(tokenizer.eos_token_id, model)
    if config.rollout.backend == "vllm_server":
        return ServerGenerator(VLLMServer(config.rollout.server_url), tokenizer.eos_token_id)
    return TransformersGenerator(model, tokenizer, config.rollout.batch_size)


def require_backend(config: Config, path: str) -> None:
    """Raises UserError if what `rollout.backend` names is not there, or serves another model than the policy at `path`."""
    if config.rollout.backend == "vllm":
        require_vllm()
    elif config.rollout.backend == "vllm_server":
        VLLMServer(config.rollout.server_url).require(path, config.policy.dtype)


def build_policy_engine(
    config: Config, policy: str | LLMConfig, tokenizer: PreTrainedTokenizerBase | None, client: LLMClient | None
) -> RolloutEngine:
    """The engine of a policy to evaluate: a checkpoint with its tokenizer, or a model behind an API."""
    if isinstance(policy, str):
        return build_engine(config, tokenizer, load_policy(config, policy), client)
    environment = build_environment(config, client)
    return ApiRolloutEngine(policy, client, lambda: environment, config.rollout, config.data.language)


def build_domain(config: Config) -> Domain:
    """What `environment.domain` names."""
    return make_domain(config)


def build_examiner(config: Config) -> Examiner | None:
    """(query, trajectory) → what is true of it; None if the domain has no truth."""
    domain = build_domain(config)
    return domain.examine and cached_examiner(domain.examine)


def build_client(config: Config, stage: str, folder: Path | None = None) -> LLMClient | None:
    """The way to all LLMs of a stage; None if it asks none. With a `folder`, every verdict is logged there.

    Raises:
        UserError: a key's environment variable is not set.
    """
    judge = config.judge
    judges = {
        "rl": [judge.train, *judge.eval, judge.verifier], "evaluate": [*judge.eval, judge.verifier], "difficulty": [judge.verifier]
    }.get(stage, [judge.train])  # fmt: skip
    policies = config.evaluate.api.values() if stage in ("evaluate", "query") else []
    llms = [llm for llm in [*judges, *config.environment.llms.values(), *policies] if llm.name == "llm"]
    if not llms:
        return None
    processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    keys = {} if config.judge.store_only else read_keys(llms)
    log = folder / f"verdicts-{rank}.jsonl" if folder else None
    return LLMClient(config.judge, f"{config.run_name}/{stage}", keys, processes, rank, log)


def build_judge(
    config: Config, judge: JudgeConfig, examiner: Examiner | None, client: LLMClient | None = None, purpose: str = "train"
) -> Judge:
    """A judge; an embedded one's noise derives from the run's seed and its purpose.

    Raises:
        UserError: the class that `name` names cannot be had, or the embedded judge has no truth to score against.
    """
    if judge.name == "llm":
        return LLMJudge(judge, client, _query_rubrics(config, judge) if judge.query_rubrics else None)
    if judge.name == "embedded":
        if config.data.source:
            judge_file = "configs/judges/qwen3_max.yaml"
            raise UserError(f"judge: published queries (data.source) have no truth for the embedded judge; take an LLM judge, such as {judge_file}")
        needs(build_domain(config), "examine", "the embedded judge scores by; take another judge (configs/judges), or another domain")
        return EmbeddedJudge(judge, examiner, stable_seed(config.seed, "judge", purpose))
    return named_class(judge.name, "judge")(judge)


def _query_rubrics(config: Config, judge: JudgeConfig) -> dict[str, Rubric]:
    """Raises UserError if a query of the RL split has none."""
    from arenarl.judges.query_rubrics import read_query_rubrics  # which builds its client here

    rubrics = read_query_rubrics(Path(judge.query_rubrics))
    missing = [query.query_id for query in read_queries(Path(config.data.folder) / "rl_queries.jsonl") if query.query_id not in rubrics]
    if missing:
        raise UserError(f"{judge.query_rubrics} lacks {len(missing)} rubrics, first {missing[0]}; write them with python -m arenarl.judges.query_rubrics")
    return rubrics


def build_verifier(config: Config, client: LLMClient | None) -> Verifier | None:
    """The LLM that compares known answers; None if they are compared exactly, which the truth does."""
    return Verifier(config.judge.verifier, client) if config.judge.verifier.name == "llm" else None


def build_judges(config: Config, examiner: Examiner | None, client: LLMClient | None = None) -> list[Judge]:
    """The judges of `judge.eval`."""
    return [build_judge(config, judge, examiner, client, f"eval{index}") for index, judge in enumerate(config.judge.eval)]


def load_policy(config: Config, path: str) -> Any:
    """A checkpoint for generation: the model, on the GPU if there is one, or vLLM's engine, or None where a server now serves it."""
    if config.rollout.backend == "vllm":
        return load_engine(path, config)
    if config.rollout.backend == "vllm_server":
        VLLMServer(config.rollout.server_url).load(str(Path(path).resolve()) if Path(path).is_dir() else path)
        return None
    return load_model(path, config.policy.dtype).to("cuda" if torch.cuda.is_available() else "cpu").eval()


def training_queries(config: Config) -> list[Query]:
    """The RL split, without what the domain holds out (travel: M-Day) unless `rl.subtasks` names it, nor what `rl.difficulty` leaves out."""
    domain, path = build_domain(config), Path(config.data.folder) / "rl_queries.jsonl"
    queries = _queries_of(domain, path)
    known = domain.subtasks_of(queries)
    wanted = config.rl.subtasks or [subtask for subtask in known if subtask not in domain.held_out]
    if unknown := sorted(set(wanted) - set(known)):
        raise UserError(f"rl.subtasks: unknown {', '.join(unknown)}; known: {', '.join(known)}")
    queries = [query for query in queries if query.subtask in wanted]
    if config.reward.name == "correctness" and (open_ended := [query for query in queries if not has_answer(query)]):
        raise UserError(
            f"reward.name=correctness needs a known answer, and {path} has {len(open_ended)} queries without, first {open_ended[0].query_id} of "
            f"{open_ended[0].subtask}; set rl.subtasks, or reward.name=correctness_or_tournament"
        )
    if config.rl.difficulty.filter:
        queries = of_right_difficulty(config, queries)
    if len(queries) < config.rl.groups:
        raise UserError(
            f"{path} has {len(queries)} queries of {', '.join(wanted)}{' of the right difficulty' * config.rl.difficulty.filter}, fewer than "
            f"rl.groups={config.rl.groups}; change rl.subtasks, rl.difficulty or rl.groups, or prepare more data"
        )
    return queries


def difficulty_path(config: Config) -> Path:
    """Where `arenarl.training.difficulty` leaves the pass rates of the policy that RL starts from: beside it, for all runs that do."""
    folder = config.run_dir if config.rl.init else Path(config.sft_policy).parent
    return folder / "difficulty" / "pass_rates.jsonl"


def of_right_difficulty(config: Config, queries: list[Query]) -> list[Query]:
    """Those without a known answer, and those that the SFT policy answers neither never nor always (4.1, InfoAgent).

    Raises:
        UserError: pass rates are missing.
    """
    bounds, path = config.rl.difficulty, difficulty_path(config)
    rates = {record["query_id"]: record["pass_rate"] for record in read_jsonl(path)} if path.is_file() else {}
    closed = [query for query in queries if has_answer(query)]
    if missing := [query for query in closed if query.query_id not in rates]:
        raise UserError(
            f"rl.difficulty.filter: {path} lacks {len(missing)} of {len(closed)} pass rates; python -m arenarl.training.difficulty finds them"
        )
    kept = {query.query_id for query in closed if rates[query.query_id] is not None and bounds.low <= rates[query.query_id] <= bounds.high}
    return [query for query in queries if not has_answer(query) or query.query_id in kept]


def _queries_of(domain: Domain, path: Path) -> list[Query]:
    """Raises UserError if one is of another domain."""
    queries = read_queries(path)
    if others := [query for query in queries if query.domain != domain.name]:
        one = others[0]
        raise UserError(f"{path}: query {one.query_id} is of the domain {one.domain}, environment.domain of {domain.name}; change one of them")
    return queries


def test_set(config: Config) -> tuple[list[Query], dict[str, Trajectory]]:
    """The test queries and their stored baselines by query id."""
    folder = Path(config.data.folder)
    queries = _queries_of(build_domain(config), folder / "test_queries.jsonl")
    baselines = {record["query_id"]: Trajectory.from_record(record) for record in read_jsonl(folder / "test_baselines.jsonl")}
    if missing := [query.query_id for query in queries if query.query_id not in baselines]:
        raise UserError(f"{folder}/test_baselines.jsonl lacks {len(missing)} baselines, first {missing[0]}; prepare the data again")
    return queries, baselines


def build_curve(
    config: Config, engine: RolloutEngine, examiner: Examiner | None, folder: Path, client: LLMClient | None = None
) -> CurveRecorder:
    """The evaluation on `rl.eval_queries` test queries during RL."""
    queries, baselines = test_set(config)
    queries = spread_over_subtasks(queries, config.rl.eval_queries, build_domain(config).subtasks_of(queries))
    judges, verifier = build_judges(config, examiner, client), build_verifier(config, client)
    return CurveRecorder(engine, queries, baselines, judges, examiner, config.temperatures, config.seed, folder, client, verifier)


def spread_over_subtasks(queries: list[Query], count: int, subtasks: Iterable[str]) -> list[Query]:
    """The first `count` queries, taken from the subtasks in turn."""
    by_subtask = [[query for query in queries if query.subtask == subtask] for subtask in subtasks]
    turns = [members[index] for index in range(len(queries)) for members in by_subtask if index < len(members)]
    return turns[:count]


def lora_config(config: Config) -> LoraConfig | None:
    """LoRA on all linear layers, or None for full fine-tuning."""
    rank = config.policy.lora_rank
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM") if rank else None
