"""SFT that stops early, at a given share of valid trajectories.

This allows comparisons of RL from weak and strong starting policies, as in Fig. 4 (c), ArenaRL.
"""

from collections.abc import Callable
from dataclasses import replace

from accelerate.utils import gather_object
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback

from arenarl.config.schema import Config
from arenarl.domains.domain import make_domain
from arenarl.rollout.backends import make_engine
from arenarl.rollout.engine import Attempt
from arenarl.rollout.environment import Environment
from arenarl.run.processes import own_share
from arenarl.run.tracking import log
from arenarl.system.seeds import stable_seed
from arenarl.training.queries import training_queries
from arenarl.training.sft_internals import lent_model

TRIED = 200  # trajectories per check; the standard error of the valid share is at most 3.5 points


class StopAtValid(TrainerCallback):
    """Stops SFT once `sft.stop_at_valid` of the trajectories for RL's queries are valid.

    Checks every `sft.save_steps` steps, on all processes, each with its share of the queries. The last step is not
    saved as a checkpoint, because a run killed there would resume and train past it.
    """

    def __init__(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, make_environment: Callable[[], Environment],
        note: Callable[[str], None],
    ):  # fmt: skip
        self.least, self.interval, self.note = config.sft.stop_at_valid, config.sft.save_steps, note
        with_transformers = replace(config, rollout=replace(config.rollout, backend="transformers"))
        self.engine = make_engine(with_transformers, tokenizer, make_environment, stage="sft")
        domain = make_domain(config.environment, config.data)
        queries = training_queries(domain, config.rl, config.reward.name, pass_rates=None)
        self.attempts = [
            Attempt(query, config.rollout.temperature, stable_seed(config.seed, "valid", query.query_id))
            for query in domain.spread_over_subtasks(queries, TRIED)
        ]

    def attach(self, trainer: Trainer) -> None:
        self.trainer = trainer
        trainer.add_callback(self)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.interval:
            return
        with lent_model(self.engine, self.trainer):
            trajectories = self.engine.roll_out(own_share(self.attempts))
        valid = gather_object([trajectory.valid for trajectory in trajectories if not trajectory.is_void])
        share = sum(valid) / max(len(valid), 1)
        self.note(f"{share:.1%} valid")
        log({"train/valid_rate": 100 * share}, state.global_step)
        if share >= self.least:
            control.should_training_stop, control.should_save = True, False
