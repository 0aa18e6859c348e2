"""Check all inputs of a training stage before it starts.

The checks of the config alone come first and take milliseconds. The other checks need torch, the data and the starting
policy. Each failed check raises a UserError, one line that says what to change. train_rl.py calls `preflight`,
train_sft.py `preflight_sft`; reproduce.sh checks the config alone before its first stage:

    python -m arenarl.training.preflight --config configs/quickstart.yaml --processes 2
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arenarl.config.checks import check_groups
from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, RLConfig
from arenarl.domains.prepared import manifest_of, refuse_other_data
from arenarl.run.trainer_arguments import check_deepspeed, refuse_lost_updates
from arenarl.system.errors import UserError, missing, run_cli
from arenarl.system.progress import process_count, say
from arenarl.training.requirements import check_method
from arenarl.trajectory import answer_of, how_to_get, read_trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from arenarl.domains.domain import Domain
    from arenarl.trajectory import Query

Provenance = Callable[[Config, str], dict[str, Any]]


@dataclass(frozen=True)
class Start:
    """The inputs of RL."""

    folder: Path  # runs/<run>/rl
    policy: str  # folder or hub id
    tokenizer: "PreTrainedTokenizerBase"
    domain: "Domain"
    queries: "list[Query]"  # queries to train on


def preflight(config: Config, arguments: Namespace, provenance: Provenance) -> Start | None:
    """Check all inputs of RL and make its folder; return None if RL has finished. Raises UserError for a bad input."""
    check_method(config)
    check_groups(config, process_count())
    _check_optimizer(config, "rl", arguments)
    if config.rl.advantage == "gae":
        rate = config.rl.critic_learning_rate
        refuse_lost_updates(config.policy, "rl.critic_learning_rate", rate, config.rl.deepspeed)
    refuse_other_data(config.data, config.environment, "rl", "test")

    # after the checks of the config: loading torch takes seconds
    from arenarl.domains.domain import make_domain
    from arenarl.judges.factory import refuse_answers_alone, refuse_without_truth
    from arenarl.rollout.backends import require_backend, require_sync, require_template
    from arenarl.rollout.policy import load_tokenizer, require_model, require_trainable
    from arenarl.rollout.system_prompt import keep_system_prompt
    from arenarl.run.stage import is_done, start_stage
    from arenarl.training.queries import refuse_other_pass_rates, training_queries

    policy = require_trainable(require_model(config.sft_policy), config.policy)
    require_backend(config.rollout, policy, config.policy.dtype, arguments.check)
    if not arguments.check:
        require_sync(config.rollout, lora_rank=config.policy.lora_rank, steps_ahead=config.rl.steps_ahead)
    tokenizer = load_tokenizer(policy)
    require_template(config, tokenizer)
    domain = make_domain(config.environment, config.data)
    queries = training_queries(domain, config.rl, config.reward.name, config.pass_rates)
    for key, judge in (config.judge.training | config.judge.watching).items():
        refuse_without_truth(key, [judge], domain, queries)
    refuse_without_truth("judge.eval", config.judge.eval, domain, domain.read_split("test"))
    refuse_answers_alone(config, is_training=True)
    folder = start_stage(config, "rl", provenance, policy, [query.query_id for query in queries])
    refuse_other_pass_rates(config.rl, config.pass_rates, policy)
    if is_done(folder):
        return None
    keep_system_prompt(config, folder, "rl")
    return Start(folder, policy, tokenizer, domain, queries)


def preflight_sft(config: Config, arguments: Namespace, provenance: Provenance) -> Path | None:
    """Check all inputs of SFT, make its folder and return it; return None if SFT has finished, or with --check.

    Raises UserError for a bad input.
    """
    check_method(config)
    data = Path(config.data.folder) / "sft.jsonl"
    if not data.is_file():
        how = "add a file of trajectories to data.source, and run python data/prepare.py --config <this YAML>"
        raise UserError(missing(data, f"; {how if config.data.source else how_to_get(data)}"))
    refuse_other_data(config.data, config.environment, "sft")
    _check_optimizer(config, "sft", arguments)

    from arenarl.domains.domain import make_domain
    from arenarl.rollout.backends import require_template
    from arenarl.rollout.policy import load_tokenizer, require_model, require_trainable
    from arenarl.rollout.system_prompt import keep_system_prompt
    from arenarl.run.stage import is_done, start_stage
    from arenarl.training.queries import training_queries

    # after SFT, RL would refuse them; a config without RL's keys is for SFT alone
    if config.rl != RLConfig() and (data.parent / "rl_queries.jsonl").is_file():
        training_queries(make_domain(config.environment, config.data), config.rl, config.reward.name, None)
    model = config.policy.model
    policy = require_trainable(require_model(model), config.policy) if model else None
    if policy:
        require_template(config, load_tokenizer(policy), "sft")
    _check_answers(config, data)
    folder = start_stage(config, "sft", provenance, policy)
    if is_done(folder) or arguments.check:
        return None
    keep_system_prompt(config, folder, "sft")
    return folder


def _check_answers(config: Config, data: Path) -> None:
    """Print how many trajectories of a user's own data end without an answer. Raise UserError if most of them do.

    Generated data passes, and so does an environment that ends trajectories itself.
    """
    from arenarl.domains.environments import environment_maker
    from arenarl.rollout.environment import trait
    from arenarl.rollout.instances import temporary_environment

    if (manifest_of(data.parent) or {}).get("origin") == "generated":
        return
    answered = [bool(answer_of(record["messages"])) for record in read_trajectories(data)]
    if not answered:
        raise UserError(f"{data} has no trajectory; {how_to_get(data)}")
    if all(answered):
        return
    with temporary_environment(environment_maker(config.environment, config.data.language)) as environment:
        if not trait(environment, "needs_answer"):
            return
    what = f"{data}: {answered.count(False)} of {len(answered)} trajectories end without <answer> … </answer>"
    if 2 * sum(answered) < len(answered):
        raise UserError(f"{what}, so the policy would not learn to answer; put each final text in these tags")
    say(f"{what}; they do not teach the policy to answer")


def _check_optimizer(config: Config, stage: str, arguments: Namespace) -> None:
    section = getattr(config, stage)
    check_deepspeed(f"{stage}.deepspeed", section.deepspeed, f"train_{stage}.py", arguments.check)
    refuse_lost_updates(config.policy, f"{stage}.learning_rate", section.learning_rate, section.deepspeed)


def main() -> None:
    config, arguments = parse_arguments(
        __doc__, lambda parser: parser.add_argument("--processes", type=int, default=1, help="number of RL's processes")
    )
    check_method(config)
    check_groups(config, arguments.processes)


if __name__ == "__main__":
    run_cli(main)
