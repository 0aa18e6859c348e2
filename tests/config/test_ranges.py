"""Every key of the schema refuses values out of range, of a wrong type, or that only look like its type."""

import dataclasses
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.config import schema
from arenarl.config import value_types as kinds
from arenarl.config.load import config_to_yaml, load_config
from arenarl.config.schema import Config
from arenarl.system.errors import UserError
from arenarl.training.requirements import check_method

HUGE, TINY = "100000000000000000000", "1e-308"
WRONG = (
    "-1", "0", HUGE, "1e308", TINY, ".nan", "-.inf", "''", '"a\\nb"', "true", "yes", "12:30:45", "010", "1_000", "abc",
    "../x", "[[1]]", "[]", "{a: {b: 1}}", "null",
)  # fmt: skip
TEXT = {"-1", "0", HUGE, "yes", "12:30:45", "010", "1_000", "abc", "../x"}  # read as text
NAME = {"0", HUGE, "yes", "010", "1_000", "abc"}
ACCEPTED = {  # type -> values that all keys of this type accept; optional keys also accept null
    kinds.Bool: {"true"}, kinds.Text: TEXT, kinds.File: TEXT, kinds.Word: TEXT, kinds.Prose: TEXT | {'"a\\nb"'},
    kinds.Prompt: TEXT | {'"a\\nb"'}, kinds.RunName: NAME,
    kinds.DomainName: NAME, kinds.ProjectName: NAME | {"-1"}, kinds.VariableName: {"yes", "abc"}, kinds.Seed: {"0"},
    kinds.Share: {"0", TINY}, kinds.NonNegativeFloat: {"0", TINY}, kinds.Spread: {"0", TINY},
    kinds.Points: {"-1", "0", TINY}, kinds.PositiveFloat: {TINY}, kinds.Seconds: {TINY}, kinds.LearningRate: {TINY},
    kinds.Fields: {"{a: {b: 1}}"},
}  # fmt: skip
OF_KEY = {  # key -> the values that it accepts, where its type does not decide
    "build.rounds": {"0"}, "rl.warmup_steps": {"0"}, "rl.steps_ahead": {"0"},
    "policy.lora_rank": {"0"}, "rl.eval_steps": {"0"}, "rl.advantage_ddof": {"0"}, "sft.warmup_ratio": {"0", TINY},
    "sft.adam_beta2": {"0", TINY}, "rl.epsilon": {TINY}, "rl.keep_from": {"-1", "0", TINY}, "rl.discount": {"0", TINY},
    "rl.gae_lambda": {"0", TINY}, "rl.epsilon_high": {TINY, "null"}, "rollout.vllm_memory": {TINY},
    "rollout.server_url": set(), "environment.search.web.endpoint": {"null"},
    "data.source": {"[]"} | {f"[{text}]" for text in TEXT}, "data.research.hop_weights": {f"[{TINY}]"},
    "judge.train.query_rubrics": {"null"}, "data.divide": set(), "reward.entity_recall": {"0", TINY},
    "judge.train.flip_rate": {"0", TINY, "null"}, "judge.train.turn_error_rate": {"0", TINY},
    "tournament.matches": {HUGE, "010"},  # more matches than pairs: all pairs
} | {
    f"{llm}.{key}": values
    for llm in ("judge.train", "data.research.rephraser")
    for key, values in {"temperature": {"0", TINY, "null"}, "base_url": {"null"}, "model": {"null"}}.items()
}  # fmt: skip


def keys(section=Config, prefix="", seen=None):
    """Yield (dotted key, type) of all keys; a section that several keys hold counts once, a list of sections never."""
    seen = set() if seen is None else seen
    seen.add(section)
    kind_of = get_type_hints(section, include_extras=True)
    for name, hint in get_type_hints(section).items():
        inner = next((part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)), None)
        if inner is None:
            yield prefix + name, kind_of[name]
        elif inner not in seen and get_origin(hint) is not list:
            yield from keys(inner, f"{prefix}{name}.", seen)


def accepted(kind):
    """Return the values that the type accepts; for a list, one-item lists of them."""
    if type(None) in get_args(kind):
        return accepted(get_args(kind)[0]) | {"null"}
    plain = getattr(kind, "__origin__", kind) if kind not in ACCEPTED else kind
    item = get_args(plain)[0] if get_origin(plain) is list else get_args(kind)[0] if get_origin(kind) is list else None
    return ACCEPTED.get(kind, set()) if item is None else {f"[{value}]" for value in accepted(item)}


KEYS = dict(keys())
READERS = {  # key or section that is not always read -> the overrides with which it is
    "rollout.vllm_tensor_parallel": ["rollout.backend=vllm"], "rollout.server": ["rollout.backend=vllm_server"],
    "rollout.send_adapter": ["rollout.backend=vllm", "policy.lora_rank=8"],
    "environment.server": ["environment.name=my:World"], "data.subtasks": ["environment.domain=babyai"],
    "data.items": ["environment.domain=babyai"], "rl.difficulty": ["rl.difficulty.filter=true"],
    "judge.train.explain": ["judge.train.name=my:Judge"], "judge.train.max_": ["judge.train.name=my:Judge"],
}  # fmt: skip


def outcome(path, overrides, is_trained=False):
    """Return the config with these overrides, or the one-line error."""
    try:
        config = load_config(path, overrides)
        if is_trained:
            check_method(config)
        return config
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return str(error)


@pytest.mark.parametrize("place", sorted({key.partition(".")[0] for key in KEYS}))
def test_each_key_accepts_exactly_the_values_of_its_type_and_range(place, tmp_path):
    run = tmp_path / "run.yaml"
    run.touch()
    for key, kind in KEYS.items():
        if key.partition(".")[0] != place:
            continue
        taken = set()
        for value in (*WRONG, *(f"[{value}]" for value in WRONG if "list[" in str(kind))):
            readers = [change for start, changes in READERS.items() if key.startswith(start) for change in changes]
            found = outcome(run, [*readers, f"{key}={value}"])
            if isinstance(found, Config):
                taken.add(value)
            else:
                assert key in found.removeprefix(f"--set {key}: "), found
        assert taken == OF_KEY.get(key, accepted(kind)), key


@pytest.mark.parametrize(("change", "reader"), [  # a key, and a setting under which nothing reads it
    ("reward.mixture_pairs=elo", "reward.name=brpo"), ("tournament.placement=algorithm1", "tournament.topology=swiss"),
    ("tournament.accumulate=sum", "reward.name=pointwise_answer"), ("tournament.ranking=scores", "reward.name=elo"),
    ("rl.batch_size=3", "rl.method=online"), ("rl.dpo_beta=0.2", "rl.method=agentevol"),
    ("rl.critic_learning_rate=0.1", "rl.advantage=group_std"), ("rollout.server_sync=nccl", "rollout.backend=vllm"),
    ("rollout.send_adapter=true", "rollout.backend=vllm"), ("data.subtasks=[Search]", "name=a"),
    ("rollout.server_weights=/dev/shm/p", "rollout.backend=transformers"),
    ("data.items=official", "environment.domain=writing"), ("environment.server=http://h:1", "environment.name=none"),
    ("rl.difficulty.low=0.1", "rl.difficulty.filter=false"), ("sft.warmup_ratio=0.1", "sft.lr_scheduler=constant"),
    ("rl.epsilon=0.1", "rl.updates_per_rollout=1"), ("rl.epsilon_high=0.3", "rl.updates_per_rollout=1"),
    ("rl.importance_sampling_level=sequence", "rl.updates_per_rollout=1"),
])  # fmt: skip
def test_a_key_that_nothing_would_read_is_refused(change, reader, tmp_path):
    """Further keys: training/test_requirements.py."""
    (tmp_path / "run.yaml").touch()
    found = outcome(tmp_path / "run.yaml", [change, reader], is_trained=True)
    key, value = change.split("=")
    starts = f"{change} is of ", f"{change} needs ", f'{key}=["{value[1:-1]}"] needs '
    assert isinstance(found, str) and found.startswith(starts) and "leave it out, or set" in found


def test_a_section_that_nothing_would_read_is_refused(tmp_path):
    (tmp_path / "run.yaml").touch()
    changes = ["environment.tickets={name: llm, model: m}", "environment.name=research"]
    found = outcome(tmp_path / "run.yaml", changes)
    assert found == "environment.tickets needs environment.name=travel or mcp, not research; leave it out"


@pytest.mark.parametrize("generator", [
    ["rollout.backend=vllm"], ["rollout.backend=vllm_server"], ["rollout.backend=vllm_server", "rl.steps_ahead=1"],
])  # fmt: skip
def test_with_one_update_a_generators_correction_reads_the_ratios_level_but_no_clip_range(generator, tmp_path):
    """The correction is a weight per token, so the level matters. With rl.steps_ahead, TRL recomputes the old
    log-probabilities, so every ratio is 1 and nothing is clipped."""
    (tmp_path / "run.yaml").touch()
    level = [*generator, "rl.importance_sampling_level=sequence"]
    assert isinstance(outcome(tmp_path / "run.yaml", level, is_trained=True), Config)
    found = outcome(tmp_path / "run.yaml", [*generator, "rl.epsilon=0.1"], is_trained=True)
    assert isinstance(found, str) and found.startswith("rl.epsilon=0.1 needs rl.updates_per_rollout=2 or more, not 1")


def test_keys_of_an_mcp_server_accept_only_values_of_their_type(tmp_path):
    (tmp_path / "run.yaml").touch()
    for key, kind in keys(schema.MCPServerConfig):
        for value in () if "." in key else WRONG:
            server = f"{{{key}: {value}}}" if key == "command" else f"{{command: [x], {key}: {value}}}"
            found = outcome(tmp_path / "run.yaml", [f"environment={{name: mcp, mcp: [{server}]}}"])
            if isinstance(found, Config):
                assert value in accepted(kind) or value == "[]", (key, value)
            else:
                assert (
                    f"environment.mcp.0.{key}" in found
                    or "name one of command, url and world" in found
                    or "not valid YAML" in found
                ), found


NUMBERS = st.integers(-5, 2000).map(str) | st.floats().map(str) | st.floats(0, 1).map(str)
TEXTS = st.text(st.sampled_from("[]{}&*!|>-:,?#%@'\"\\ \n\ta1<~./"), max_size=20)
CHANGES = st.builds("{}={}".format, st.sampled_from(sorted(KEYS)), NUMBERS | TEXTS | st.text(max_size=10))


@given(changes=st.lists(CHANGES, max_size=3))
def test_any_changes_make_a_config_that_reads_back_or_are_refused_in_one_line(changes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    (folder / "run.yaml").touch()
    found = outcome(folder / "run.yaml", changes)
    if isinstance(found, Config):
        (folder / "run.yaml").write_text(config_to_yaml(found), encoding="utf-8")
        assert load_config(folder / "run.yaml") == found
