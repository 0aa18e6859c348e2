"""Requirements of methods and rewards: contradictory and unread keys are refused in one line."""

from collections import defaultdict
from typing import get_args, get_type_hints

import pytest

from arenarl.config import load
from arenarl.config.load import load_config
from arenarl.config.schema import RLConfig
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.training.methods import METHODS, chosen_methods
from arenarl.training.requirements import check_method

UNREAD = ("loss_type=dapo", "epsilon=0.1", "epsilon_high=0.3", "updates_per_rollout=5", "advantage=none",
          "importance_sampling_level=sequence", "advantage_ddof=0", "advantage_epsilon=0.5", "resample_equal=2.0",
          "balance_micro_batches=true")  # fmt: skip
REFUSED = [  # --set, words of the error
    ("rl.loss_type=dr_grpo", "rl.advantage=group_std (GRPO) does not go with rl.loss_type=dr_grpo"),
    ("rl.loss_type=dr_grpo rl.advantage=batch_std", "(REINFORCE++ with baseline) does not go with"),
    ("rl.loss_type=dapo rl.importance_sampling_level=sequence", "(GSPO) needs rl.loss_type=grpo, not dapo"),
    ("rl.advantage=decoupled reward.name=win_rate", "(GDPO) does not go with reward.name=win_rate"),
    ("rl.advantage=gae rl.deepspeed=ds_config.json", "(PPO) needs rl.deepspeed=null, not ds_config.json"),
    ("rl.advantage=gae rl.importance_sampling_level=sequence", "rl.importance_sampling_level=token"),
    ("rl.advantage=gae rl.method=agentevol", "rl.advantage=gae needs rl.method=online, not agentevol"),
    ("rl.method=dpo reward.name=pointwise_answer", "(DPO) needs the matches of a tournament"),
    ("rl.method=dpo tournament.bidirectional=false", "(DPO) needs tournament.bidirectional=true, not false"),
    ("rl.method=agentevol rollout.backend=vllm", "(AgentEvol) needs rollout.backend=transformers, not vllm"),
    ("rl.method=dpo rl.deepspeed=ds_config.json", "(DPO) needs rl.deepspeed=null"),
    ("rl.advantage=center rl.advantage_ddof=0", "advantage_ddof=0 needs rl.advantage=gigpo or group_std, not center"),
    *((f"rl.advantage={name} rl.resample_equal=2.0", "rl.resample_equal=2 would drop groups from which")
      for name in ("none", "decoupled", "gae", "global_std")),
    ("rl.advantage=step_credit", "(ArenaFlow's step credit) needs judge.train.name_turns=true, not false"),
    ("rl.advantage=step_credit judge.train.name_turns=true reward.name=elo", "needs the matches of a tournament"),
    ("judge.train.name_turns=true", "name_turns=true needs rl.advantage=step_credit, not group_std"),
    ("judge.train.turn_error_rate=0.0", "turn_error_rate=0.0 needs rl.advantage=step_credit, not group_std"),
    ("rl.credit_orders=both", "rl.credit_orders=both needs rl.advantage=step_credit, not group_std"),
    ("rl.advantage=step_credit judge.train.name_turns=true rl.credit_orders=both tournament.bidirectional=false",
     "rl.credit_orders=both needs tournament.bidirectional=true, not false; leave it out, or set rl.credit_orders=eit"),
    ("judge.train.irrelevant_rate=0.5", "irrelevant_rate=0.5 needs reward.name=evolving_rubrics, not tournament"),
    ("rl.advantage=gigpo", "(GiGPO) needs environment.domain=textcraft or babyai, not travel"),
    ("rl.advantage=rtmc", "(RTMC) needs environment.domain=textcraft or babyai, not travel"),
    ("rl.state_weight=0.5", "rl.state_weight=0.5 needs rl.advantage=gigpo, not group_std"),
    ("rl.discount=0.5", "needs rl.advantage=gae or gigpo, not group_std; leave it out, or set rl.discount=1.0"),
    ("rl.rounds=2", "rl.rounds=2 needs rl.method=agentevol or dpo, not online"),
    ("rl.keep_from=0.5 rl.method=dpo", "rl.keep_from=0.5 needs rl.method=agentevol, not dpo"),
    ("reward.alpha=2.0", "reward.alpha=2.0 needs reward.name=mixture, not tournament"),
    ("reward.name=win_rate tournament.topology=swiss", "needs reward.name=correctness_or_tournament or tournament"),
    ("reward.name=ruler tournament.bidirectional=false", "tournament.bidirectional=false needs reward.name=brpo or"),
    ("reward.name=win_rate tournament.elo_matches=12", "tournament.elo_matches=12 needs tournament.topology=elo"),
    ("tournament.topology=swiss tournament.matches=n", "tournament.matches=n needs tournament.topology=balanced"),
    ("reward.entity_recall=0.5", "entity_recall=0.5 needs reward.name=correctness or"),
    ("reward.name=pointwise_trajectory reward.repeats=2 judge.train.name=llm judge.train.model=m",
     "reward.repeats=2: at judge.train.temperature=0 all replies to a prompt are equal"),
    ("reward.as_ranks=true", "as_ranks=true needs reward.name=pointwise_answer or pointwise_trajectory, not"),
    ("group_stage.repeats=3", "group_stage.repeats=3 needs reward.name=tournament_grpo, not tournament"),
    ("reward.name=tournament_grpo group_stage.final=8", "group_stage.final=8: must be below rollout.group_size"),
    *((f"rl.method=dpo rl.{key}", f"rl.{key} needs rl.method=online, not dpo; leave it out") for key in UNREAD),
]  # fmt: skip


@pytest.mark.parametrize(("sets", "words"), REFUSED)
def test_contradictory_and_unread_keys_are_refused(sets, words, monkeypatch):
    monkeypatch.setattr(load, "check", lambda config: None)  # only the requirements check
    with pytest.raises(UserError) as caught:
        check_method(load_config(CONFIGS / "quickstart.yaml", sets.split()))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("sets", [
    "reward.name=elo tournament.elo_matches=12",
    "reward.name=pointwise_trajectory reward.repeats=2 judge.train.name=llm judge.train.model=m "
    "judge.train.temperature=0.7",
    "rl.method=dpo reward.name=environment reward.tournament_if_equal=true",
    "reward.name=mixture reward.mixture_pairs=elo tournament.elo_estimate=bradley_terry",
])  # fmt: skip
def test_keys_that_are_read_are_accepted(sets):
    check_method(load_config(CONFIGS / "quickstart.yaml", sets.split()))


def test_groups_of_equal_rewards_are_replaced_only_if_the_method_learns_nothing_from_them():
    check_method(load_config(CONFIGS / "agentgym" / "babyai_rtmc.yaml", ["rl.resample_equal=2.0"]))
    dropped = r"rl.resample_equal=2 would drop groups from which rl.advantage=gigpo \(GiGPO\)"
    with pytest.raises(UserError, match=dropped):
        check_method(load_config(CONFIGS / "agentgym" / "babyai_gigpo.yaml", ["rl.resample_equal=2.0"]))


def test_every_config_of_the_repository_meets_its_requirements():
    for path in sorted(CONFIGS.rglob("*.yaml")):
        if path.parent.name in ("configs", "methods", "travel", "research", "writing", "agentgym"):
            check_method(load_config(path))


# values that choose no method by themselves: three defaults, and the loss that Dr.GRPO and RLOO share
WITHOUT_METHOD = {
    "rl.method": {"online"},
    "rl.importance_sampling_level": {"token"},
    "rl.loss_type": {"grpo", "dr_grpo"},
}


def test_every_value_of_a_method_s_key_has_its_method():
    chosen = defaultdict(set)
    for method in METHODS:
        for key, value in method.keys.items():
            assert value not in chosen[key], f"{method.title}: another method has {key}={value} too"
            chosen[key].add(value)
    for key, values in chosen.items():
        allowed = set(get_args(get_type_hints(RLConfig)[key.removeprefix("rl.")]))
        values |= WITHOUT_METHOD.get(key, set())
        assert allowed == values, f"{key}: only the config or only METHODS of training/methods has {allowed ^ values}"


def test_every_method_has_a_yaml():
    folders = (CONFIGS, CONFIGS / "methods", CONFIGS / "agentgym")
    yamls = [path for folder in folders for path in folder.glob("*.yaml")]
    titles = {method.title for path in yamls for method in chosen_methods(load_config(path))}
    missing = {method.title for method in METHODS} - titles
    assert not missing, f"add configs/methods/<name>.yaml of {missing}"
