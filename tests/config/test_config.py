import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from arenarl.config import schema as config_module
from arenarl.config.checks import check_groups
from arenarl.config.load import config_to_yaml, load_config
from arenarl.config.schema import Config
from arenarl.report import __main__ as report
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# folders of configs/ that hold parts of runs
PARTS = {"judges", "policies", "environments", "prompts", "rubrics", "launch", "tables"}
YAMLS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name not in PARTS)
JUDGES = sorted((ROOT / "configs" / "judges").glob("*.yaml"))
SECTIONS = [
    value
    for value in vars(config_module).values()
    if dataclasses.is_dataclass(value) and value.__module__ == config_module.__name__
]


@pytest.fixture
def load(tmp_path):
    """`load(yaml_text, *overrides)`; further files of the folder as keyword arguments."""

    def load(text, *overrides, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.yaml").write_text(content, encoding="utf-8")
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return load_config(tmp_path / "run.yaml", list(overrides))

    return load


@pytest.fixture
def refuse(load):
    """The message of the UserError that `load` with the same arguments must raise: a single line."""

    def refuse(*arguments, **files):
        with pytest.raises(UserError) as caught:
            load(*arguments, **files)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return refuse


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_yaml_loads_and_reads_back_equal(path, tmp_path):
    config = load_config(path)
    (tmp_path / "resolved.yaml").write_text(config_to_yaml(config), encoding="utf-8")
    assert load_config(tmp_path / "resolved.yaml") == config


def test_an_empty_yaml_is_the_default(load):
    assert load("") == Config()


def test_a_changed_config_reads_back_equal(load, tmp_path):
    changed = load(
        "name: 变\njudge: {eval: [{noise: none}, {}]}\nevaluate: {checkpoints: {a: b}}",
        "rl.subtasks=[Search, M-Day]", "policy.model=Qwen/Qwen3-8B", "rl.epsilon_high=0.28", "sft.deepspeed=null",
    )  # fmt: skip
    assert load(config_to_yaml(changed)) == changed
    assert changed != Config()


@pytest.mark.parametrize(
    ("text", "overrides", "wrong", "nearest"),
    [
        ("rolout: {}", [], "rolout", "rollout"),
        ("rollout: {group_sise: 4}", [], "rollout.group_sise", "rollout.group_size"),
        ("policy: {scratch: {hiden_size: 4}}", [], "policy.scratch.hiden_size", "policy.scratch.hidden_size"),
        ("judge: {train: {noize: none}}", [], "judge.train.noize", "judge.train.noise"),
        ("judge: {eval: [{noize: none}]}", [], "judge.eval.0.noize", "judge.eval.0.noise"),
        ("judge: {eval: [{}, {sigma_cal: 1}]}", [], "judge.eval.1.sigma_cal", "judge.eval.1.sigma_call"),
        ("", ["sed=1"], "sed", "seed"),
        ("", ["rl.group=4"], "rl.group", "rl.groups"),
        ("", ["judge.train.noize=none"], "judge.train.noize", "judge.train.noise"),
        ("", ["judge.eval.0.noize=none"], "judge.eval.0.noize", "judge.eval.0.noise"),
        ("", ["judge.eval=[{noize: none}]"], "judge.eval.0.noize", "judge.eval.0.noise"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(refuse, text, overrides, wrong, nearest):
    message = refuse(text, *overrides)
    assert re.search(rf"(?<![\w.]){re.escape(wrong)}(?![\w.])", message)
    assert re.search(rf"did you mean(?: one of)?:? '?{re.escape(nearest)}\b", message, re.IGNORECASE)
    assert (f"--set {overrides[0]}" if overrides else "run.yaml") in message


def test_a_key_like_no_other_is_refused_with_those_there_are(refuse):
    message = refuse("tournament: {xyzzy: 1}")
    assert all(field.name in message for field in dataclasses.fields(config_module.TournamentConfig))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "abc"), ("seed", "true"), ("seed", "null"), ("threads", "1.5"), ("rollout.max_turns", "[1]"),
        ("rollout.anchor", "maybe"), ("sft.learning_rate", "fast"), ("rollout", "5"), ("judge.train", "embedded"),
        ("judge.eval", "none"), ("rl.subtasks", "Search"), ("evaluate.decodings", "greedy"),
        ("policy.scratch.num_heads", "four"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_by_its_key(refuse, key, value):
    assert key in refuse("", f"{key}={value}").removeprefix(f"--set {key}={value}")
    nested = value
    for part in reversed(key.split(".")):
        nested = f"{{{part}: {nested}}}"
    assert key in refuse(nested)


def test_a_tournament_that_cannot_be_is_refused(load, refuse):
    assert "like 2n-2" in refuse("", "tournament.matches=lots")
    assert "did you mean 'scores'" in refuse("tournament: {topology: balanced, ranking: bracket}")
    assert "tournament.timeout_s" in refuse("", "tournament.timeout_s=0")
    assert load("tournament: {topology: balanced, matches: 16, ranking: scores}").tournament.matches == "16"


@pytest.mark.parametrize(
    ("key", "choice"),
    [
        ("tournament.topology", "round_robin"), ("tournament.placement", "algorithm1"),
        ("reward.name", "pointwise_answer"), ("policy.dtype", "float32"), ("data.language", "en"),
        ("environment.results", "compact"), ("judge.train.noise", "none"), ("rl.importance_sampling_level", "sequence"),
        ("rl.loss_type", "dapo"), ("wandb.mode", "offline"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_choice_is_refused_with_the_choices(load, refuse, key, choice):
    message = refuse("", f"{key}=nonsense")
    assert key in message and choice in message
    assert f": {choice}\n" in config_to_yaml(load("", f"{key}={choice}"))


@pytest.mark.parametrize("section", [
    "judge.train", "judge.watch", "judge.eval.0", "judge.verifier", "environment.tickets", "environment.search.snippet",
    "environment.search.summary", "data.research.rephraser",
])  # fmt: skip
@pytest.mark.parametrize("key", ["model=gpt-5-mini", "base_url=http://localhost:8000/v1"])
def test_a_model_that_the_embedded_stand_in_would_ignore_is_refused(refuse, section, key):
    """A judge's file without `name: llm` would be the simulated judge, and its figures be taken for the model's."""
    watch = ["judge.watch_share=0.5"] if section == "judge.watch" else []
    said = refuse("judge: {eval: [{name: embedded}]}", f"{section}.{key}", *watch)
    assert f"{section}.{key.split('=')[0]} would be ignored" in said and f"{section}.name is embedded" in said


def test_a_base_is_read_first_and_the_file_changes_it(load):
    config = load(
        "base: parent.yaml\nrollout: {max_turns: 5}", parent="seed: 3\nrollout: {max_turns: 4, group_size: 6}"
    )
    assert (config.seed, config.rollout.max_turns, config.rollout.group_size) == (3, 5, 6)


def test_the_command_line_comes_last_and_its_own_last_word_counts(load):
    assert load("base: parent.yaml\nseed: 2", "seed=4", "seed=5", parent="seed: 1").seed == 5


def test_a_mapping_goes_over_the_one_before_and_an_empty_one_takes_it_away(load):
    parent = (
        "evaluate: {checkpoints: {one: a}, api: {two: {name: llm, model: b}}}\n"
        "judge: {train: {name: llm, model: m, extra_body: {x: {y: 1}}}}"
    )
    assert load("base: parent.yaml", "evaluate.checkpoints={three: c}", parent=parent).evaluate.checkpoints == {
        "one": "a",
        "three": "c",
    }
    only = ["evaluate.checkpoints={}", "evaluate.checkpoints={three: c}"]
    assert load("base: parent.yaml", *only, parent=parent).evaluate.checkpoints == {"three": "c"}
    assert load("base: parent.yaml\nevaluate: {api: {}}", parent=parent).evaluate.api == {}
    assert load("base: parent.yaml", "judge.train.extra_body={}", parent=parent).judge.train.extra_body == {}
    assert load("base: parent.yaml", "judge.train.extra_body.x={}", parent=parent).judge.train.extra_body == {"x": {}}
    # a section has keys of its own
    assert load("base: parent.yaml", "judge={}", parent=parent).judge.train.model == "m"


def test_a_base_of_a_base_is_refused(refuse):
    message = refuse("base: parent.yaml", parent="base: grandparent.yaml", grandparent="seed: 1")
    assert "parent.yaml" in message and "one level" in message


def test_mistakes_in_a_base_are_refused_too(refuse):
    assert "rollout" in refuse("base: parent.yaml", parent="rolout: {}")


@pytest.mark.parametrize("text", ["base: 5", "base: [a.yaml]"])
def test_a_base_that_is_no_path_is_refused(refuse, text):
    assert "base" in refuse(text)


def test_a_missing_file_names_the_nearest(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(
        UserError, match=re.escape("configs/quikstart.yaml does not exist; did you mean configs/quickstart.yaml?")
    ):
        load_config("configs/quikstart.yaml")


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "a: [", "a: b: c"])
def test_what_is_no_mapping_is_refused_with_the_file(refuse, text):
    assert "run.yaml" in refuse(text)


def test_overrides_take_the_type_of_their_key(load):
    config = load(
        "", "sft.learning_rate=2e-5", "rollout.anchor=false", "name=12", "policy.model=null",
        "rl.subtasks=[Search, Compare]", "judge.eval.0.noise=none", "data.folder=a=b", "rl.epsilon_high=1",
        "evaluate.checkpoints={one: x}",
    )  # fmt: skip
    assert (
        config.sft.learning_rate == 2e-5
        and config.rollout.anchor is False
        and config.name == "12"
        and config.policy.model is None
    )
    assert (
        config.rl.subtasks == ["Search", "Compare"]
        and config.judge.eval[0].noise == "none"
        and config.data.folder == "a=b"
    )
    assert config.rl.epsilon_high == 1.0 and config.evaluate.checkpoints == {"one": "x"}


@pytest.mark.parametrize(
    "override",
    ["seed", "=3", "seed=[1", "rollout.group_size.more=3",
     "judge.eval.5.noise=none", "judge.eval.noise=none", "name=${nowhere}"],
)  # fmt: skip
def test_an_override_that_makes_no_sense_is_refused(refuse, override):
    assert override.split("=")[0] in refuse("", override)


def test_one_checkpoint_can_be_named_on_the_command_line(load):
    assert load("", "evaluate.checkpoints.sft=x", "evaluate.checkpoints.rl=y").evaluate.checkpoints == {
        "sft": "x",
        "rl": "y",
    }


@pytest.mark.parametrize(
    "override", ["judge.eval=[{}, {sigma_call: fast}]", "judge.eval=[{}, 3]", "judge.eval=[{}, {rounding: .nan}]"]
)
def test_a_mistake_in_an_item_of_a_list_is_refused_by_its_full_path(refuse, override):
    assert "judge.eval.1" in refuse("", override)
    assert "judge.eval.1" in refuse(override.replace("judge.eval=", "judge: {eval: ") + "}")


def test_an_entry_that_a_list_does_not_have_is_refused_with_their_number_and_how_to_add_one(refuse):
    assert (
        "unknown key judge.eval.1; judge.eval has 1 entry, numbered from 0; to add one, set the whole list"
        in refuse("", "judge.eval.1.name=llm")
    )
    assert "judge.eval has 2 entries" in refuse("judge: {eval: [{}, {}]}", "judge.eval.noise=none")


@pytest.mark.parametrize(
    "override", ["judge.eval={name:llm}", "judge.eval=[{name:llm}]", "judge.train={name:llm}", "judge.train=name:llm"]
)
def test_a_colon_without_a_space_is_told_as_what_it_is(refuse, override):
    assert refuse("", override).endswith("; YAML needs a space after the colon")


def test_a_list_of_known_keys_that_is_cut_says_so(refuse):
    assert refuse("", "judge.train.qqqqqqqqqqqqqqq=1").endswith(", …") and not refuse("", "wandb.qqqqqqqqq=1").endswith(
        "…"
    )


def test_a_list_in_a_list_of_words_is_refused(refuse):
    assert "rl.subtasks" in refuse("rl: {subtasks: [[Search]]}")


def show(*arguments):
    """Run `python -m arenarl.config`."""
    command = [sys.executable, "-m", "arenarl.config", "--config", "configs/quickstart.yaml", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_module_prints_the_resolved_config(tmp_path):
    shown = show("--set", "seed=3", "--processes", "1")
    assert shown.returncode == 0 and shown.stderr == ""
    (tmp_path / "resolved.yaml").write_text(shown.stdout, encoding="utf-8")
    assert load_config(tmp_path / "resolved.yaml") == load_config(ROOT / "configs" / "quickstart.yaml", ["seed=3"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "sed=3"), "did you mean seed?"), (("--processes", "5", "--set", "rl.groups=6"), "rl.groups=6"),
        (("--processes", "0"), "0 processes cannot train"),
    ],
)  # fmt: skip
def test_the_module_refuses_what_cannot_run_in_one_line(arguments, reason):
    shown = show(*arguments)
    assert shown.returncode == 2 and shown.stdout == ""
    assert shown.stderr.startswith("error: ") and reason in shown.stderr and shown.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [1, 0, -3])
def test_a_group_of_less_than_two_is_refused(refuse, size):
    assert f"rollout.group_size={size}" in refuse(f"rollout: {{group_size: {size}}}")


@pytest.mark.parametrize(
    "override",
    [
        "rl.groups=0", "rl.steps=-1", "rl.micro_batch_size=0", "sft.batch_size=0", "sft.gradient_accumulation=0",
        "threads=0", "rollout.max_turns=0", "rollout.max_tokens=0", "rollout.max_turn_tokens=0", "rollout.batch_size=0",
        "rollout.temperature=0", "rollout.temperature=.nan", "data.sft_size=0", "data.rl_size=0",
        "data.test_per_subtask=0", "data.baseline_attempts=0", "judge.train.rounding=0", "sft.max_length=0",
        "data.teacher_skill=7", "judge.eval=[]", "evaluate.decodings=[]", "evaluate.decodings=[beam]",
        "judge.eval.0.rounding=0", "judge.train.sigma_call=-1", "judge.eval.0.sigma_sticky=-0.1",
        "data.baseline_skill=-0.1", "rl.learning_rate=.inf", "rl.epsilon_high=.nan", "judge.train.length_bias=-.inf",
        "rollout.temperature=-1",
    ],
)  # fmt: skip
def test_numbers_no_run_can_work_with_are_refused(refuse, override):
    assert override.split("=")[0] in refuse("", override).removeprefix(f"--set {override}")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["tournament.matches=0"], "tournament.matches=0: 2 entrants would play 0 matches"),
        (["tournament.matches=-3"], "write n-1 or 2n-2"),
        (["tournament.matches=n/1000"], "tournament.matches=n/1000"),
        (["tournament.matches=n-100"], "tournament.matches=n-100"),
        (["tournament.matches=n-2"], "2 entrants would play 0"), (["tournament.matches=7"], "16 entrants would play 7"),
        (["policy.scratch.num_heads=7"],
         "policy.scratch.num_heads=7: must be a multiple of policy.scratch.num_kv_heads=4"),
        (["policy.scratch.head_dim=7"], "policy.scratch.head_dim=7: must be a multiple of 2"),
        (["policy.scratch.vocab_size=300"], "policy.scratch.vocab_size=300: must not be below 512"),
        (["rl.eval_steps=-1"], "rl.eval_steps=-1"),
        (["rl.difficulty.low=0.8"], "rl.difficulty.low=0.8: must not be above rl.difficulty.high=0.75"),
        (["data.sft_size=1", "sft.epochs=0.2"], "sft.epochs=0.2"), (["rl.lr_scheduler=cosin"], "did you mean cosine?"),
        (["judge.train.name=embeded"],
         "judge.train.name=embeded: choose embedded, llm, or a class of your own as package.module:Class"),
        (["judge.train.api_key_variable=sk-1234"],
         "judge.train.api_key_variable: must be the name of an environment variable, not what it holds"),
        (["policy.model=1.50"],
         "policy.model=1.5: must be text; what looks like a number or a truth value needs quotes"),
        (["policy.model=" + "变" * 70], "no part between two / may have more than 200 bytes"),
        (["rollout.anchor=yes"], "rollout.anchor=yes: must be true or false"),
        (["environment.search.device=gpu"], "such as cpu, cuda or cuda:1"),
    ],
)  # fmt: skip
def test_settings_that_would_train_nothing_or_fail_later_are_refused(refuse, overrides, says):
    assert says in refuse("", *overrides)


@pytest.mark.parametrize("key", ["judge.train.base_url", "rollout.server_url", "environment.search.web.endpoint"])
@pytest.mark.parametrize(
    "url",
    [
        "http://", "host", "ftp://host", "http://[", "http://h:99999", "http://h:0", "http://:pw@h", "http://pw@h/v1",
        "http://a b", "http://h/?pw",
    ],
)  # fmt: skip
def test_an_address_is_one_and_holds_no_key(refuse, key, url):
    message = refuse(f"{{{key.replace('.', ': {')}: '{url}'{'}' * key.count('.')}}}")
    assert f"{key} must be an http(s) address" in message and "pw" not in message


@pytest.mark.parametrize("matches", ["n/2", "n-1", "n", "2n-2", "8", "1000"])
def test_matches_with_which_all_may_play_are_accepted(load, matches):
    assert load("", "tournament.topology=balanced", f"tournament.matches={matches}").tournament.matches == matches


@pytest.mark.parametrize("key", ["name", "rl.init_run"])
@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "''",
        "/etc/x",
        "a/../../x",
        "a//b",
        "a/",
        ".hidden",
        "a/.b",
        "-x",
        "a b",
        "a\\b",
        '"a\\nb"',
        "~/x",
        "x" * 150,
    ],
)
def test_names_become_folders_of_runs_and_nothing_else(refuse, key, name):
    assert f"{key}" in refuse("", f"{key}={name}").removeprefix(f"--set {key}") and "must be a" in refuse(
        "", f"{key}={name}"
    )


@pytest.mark.parametrize("name", ["quickstart", "tables/cold-start", "qwen2.5_7B", "变", "2026-01-01", "a/b/c/d"])
def test_names_of_runs_may_have_folders(load, name):
    config = load("", f"name={name}", "rl.init_run=" + name)
    assert config.run_dir == Path("runs") / name and config.sft_policy == f"runs/{name}/sft"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".a", "a b"])
def test_names_of_checkpoints_are_names(refuse, load, name):
    assert f"evaluate.checkpoints.{name}: must be a " in refuse("", f"evaluate.checkpoints={{'{name}': x}}")
    assert load("", "evaluate.checkpoints={qwen2.5-7b: x}").evaluate.checkpoints == {"qwen2.5-7b": "x"}


@pytest.mark.parametrize(
    "text", ["&a [*a]", "name: &a [*a]", "[" * 900, "rl: " + "{a: " * 900, "a: 1\na: 2", "name: !!str x", '"\\ud800"']
)
def test_yaml_that_would_blow_up_is_refused_in_one_line_wherever_it_stands(refuse, text):
    assert "run.yaml is not valid YAML" in refuse(text)
    assert "the value is not valid YAML" in refuse("", f"judge={text}")
    assert "part.yaml is not valid YAML" in refuse("judge: {train: {base: part.yaml}}", part=text)
    assert "part.yaml is not valid YAML" in refuse("base: part.yaml", part=text)


@pytest.mark.parametrize(
    "override",
    [
        "a" * 100_000, "name=" + "a" * 100_000, "a" * 100_000 + "=1", "a." * 5000 + "a=1",
        "judge.train.extra_body." + "a." * 5000 + "a=1", "name=[\n1]", "na\nme=a",
    ],
    ids=range(7),
)  # fmt: skip
def test_overrides_of_any_size_are_refused_in_a_short_line(refuse, override):
    assert len(refuse("", override)) < 1000


@pytest.mark.parametrize("n", [2, 5, 8, 16])
@pytest.mark.parametrize("k", [1, 2, 6, 8])
@pytest.mark.parametrize("micro", [1, 3, 4, 48])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_groups_are_accepted_exactly_if_no_process_and_no_micro_batch_splits_them(n, k, micro, processes):
    config = Config()
    config.rollout.group_size, config.rl.groups, config.rl.micro_batch_size = n, k, micro
    if k % processes == 0 and (k // processes * n) % micro == 0:
        check_groups(config, processes)
    else:
        with pytest.raises(UserError):
            check_groups(config, processes)


def test_a_split_group_is_refused_with_the_numbers_to_change():
    config = Config()
    config.rl.groups = 6
    with pytest.raises(UserError, match=re.escape("rl.groups=6 cannot be shared by 4 processes")):
        check_groups(config, 4)
    config.rollout.group_size, config.rl.micro_batch_size = 8, 10
    with pytest.raises(
        UserError, match=re.escape("rl.micro_batch_size=10 does not divide the 24 trajectories")
    ) as caught:
        check_groups(config, 2)
    assert "[1, 2, 3, 4, 6, 8, 12, 24]" in str(caught.value)
    config.rl.updates_per_rollout = 4
    with pytest.raises(
        UserError, match=re.escape("does not divide the 6 trajectories of a process and update")
    ) as caught:
        check_groups(config, 2)
    assert "[1, 2, 3, 6]" in str(caught.value)
    config.rl.updates_per_rollout = 5
    with pytest.raises(
        UserError, match=re.escape("rl.updates_per_rollout=5 does not divide the 24 trajectories of a process")
    ):
        check_groups(config, 2)


@pytest.mark.parametrize("method", ["dpo", "agentevol"])
def test_an_offline_batch_that_processes_cannot_share_is_refused_with_the_numbers_to_change(method):
    config = Config()
    config.rl.method, config.rl.groups, config.rl.batch_size = method, 8, 6
    check_groups(config, 2)
    with pytest.raises(
        UserError,
        match=re.escape("rl.batch_size=6 cannot be shared by 4 processes; set rl.batch_size to a multiple of 4"),
    ):
        check_groups(config, 4)
    config.rl.batch_size = 1  # less than one each
    with pytest.raises(UserError, match=re.escape("rl.batch_size=1 cannot be shared by 2 processes")):
        check_groups(config, 2)
    config.rl.method = "online"
    check_groups(config, 4)


def test_a_judge_limit_that_leaves_a_process_without_a_call_is_refused():
    config = Config()
    config.judge.concurrency = 5
    check_groups(config, 4)
    with pytest.raises(
        UserError, match=re.escape("judge.concurrency=5 cannot be shared by 8 processes; set it to 8 or more")
    ):
        check_groups(config, 8)


def test_other_seeds_get_folders_of_their_own():
    assert [Config(name="a", seed=seed).run_name for seed in (0, 1, 2)] == ["a", "a-seed1", "a-seed2"]
    assert str(Config(name="a", seed=1).run_dir) == "runs/a-seed1" and str(Config(name="a").results_dir) == "results/a"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_comment(section):
    """On its line, or on the next. A key that holds a section of its own is explained there."""
    lines = Path(config_module.__file__).read_text(encoding="utf-8").splitlines()
    start = next(
        n
        for n, line in enumerate(lines)
        if line.startswith((f"class {section.__name__}:", f"class {section.__name__}("))
    )
    inherited = {field.name for parent in section.__mro__[1:-1] for field in dataclasses.fields(parent)}
    for field in dataclasses.fields(section):
        if field.name in inherited:
            continue
        number = next(n for n, line in enumerate(lines[start:], start) if line.startswith(f"    {field.name}: "))
        if field.type not in SECTIONS:
            assert "  # " in lines[number] or lines[number + 1].startswith("    # "), (
                f"{section.__name__}.{field.name} has no comment"
            )


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("repeats", "0", "group_stage.repeats=0"), ("winners", "4", "group_stage.winners=4"),
        ("final", "1", "group_stage.final=1"), ("weights", "[]", "group_stage.weights"),
        ("weights", "[1,-1]", "group_stage.weights"), ("final", "16", "group_stage.final=16"),
    ],
)  # fmt: skip
def test_a_group_stage_that_cannot_work_is_refused(refuse, key, value, named):
    assert named in refuse("reward: {name: tournament_grpo}", f"group_stage.{key}={value}")


@pytest.mark.parametrize(
    ("override", "wrong"),
    [
        ("hop_weights=[]", "hop_weights=[]: name a weight"), ("hop_weights=[0,0]", "name a weight"),
        ("hop_weights=[1,-1]", "must not be below 0"), ("branching=[1,1]", "at most 3 entities"),
        ("branching=[2,0]", "must be above 0"), ("max_tool_calls=0", "must be above 0"),
        ("plain_share=2", "must not be above 1"), ("rephraser.name=llm", "data.research.rephraser.model is missing"),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_made_are_refused(refuse, override, wrong):
    assert wrong in refuse("", f"data.research.{override}")


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_every_judge_file_makes_a_judge_for_training_and_for_evaluation(path, load):
    config = load("", f"judge.train.base={path}", f"judge.eval=[{{base: {path}}}, {{}}]")
    assert config.judge.train == config.judge.eval[0] and config.judge.train.name == (
        "embedded" if path.stem == "embedded" else "llm"
    )
    assert config.judge.eval[1] == config_module.JudgeConfig()
    assert load(config_to_yaml(config)) == config
    text = path.read_text(encoding="utf-8")
    assert "sk-" not in text and (
        config.judge.train.api_key_variable is None or config.judge.train.api_key_variable.endswith("_API_KEY")
    )


def test_a_sections_base_comes_before_its_own_keys_and_clears_what_was_set_before(load):
    judge = "name: llm\nmodel: a\ntemperature: null\nextra_body: {x: 1}\n"
    config = load("judge: {train: {model: b, base: part.yaml}}", part=judge)
    assert (config.judge.train.model, config.judge.train.temperature, config.judge.train.extra_body) == (
        "b",
        None,
        {"x": 1},
    )
    config = load(
        "base: first.yaml\njudge: {train: {base: part.yaml}}",
        first="judge: {train: {noise: none, rounding: 1}}",
        part=judge,
    )
    assert (config.judge.train.model, config.judge.train.noise, config.judge.train.rounding) == ("a", "simulated", 0.5)


def test_a_wrong_section_base_is_refused(refuse):
    assert "does not exist" in refuse("judge: {train: {base: nowhere.yaml}}")
    assert "part.yaml: unknown key judge.train.modle; did you mean judge.train.model?" in refuse(
        "judge: {train: {base: part.yaml}}", part="modle: a"
    )
    assert "has a base of its own" in refuse("judge: {train: {base: part.yaml}}", part="base: run.yaml")
    assert "base must be the path" in refuse("judge: {train: {base: 5}}")


@pytest.mark.parametrize(
    ("judge", "wrong"),
    [
        ("{name: llm}", "judge.train.model is missing"),
        ("{name: llm, model: m, base_url: 'https://user:secret@host/v1'}", "judge.train.base_url"),
        ("{name: llm, model: m, base_url: 'http://:secret@host/v1'}", "judge.train.base_url"),
        ("{name: llm, model: m, base_url: 'https://host/v1?api-key=secret'}", "judge.train.base_url"),
        ("{name: llm, model: m, base_url: host}", "judge.train.base_url"),
        ("{timeout_s: 0}", "judge.train.timeout_s"),
    ],
)
def test_an_llm_judge_that_cannot_work_is_refused_and_no_key_is_repeated(refuse, judge, wrong):
    message = refuse(f"judge: {{train: {judge}}}")
    assert wrong in message and "secret" not in message


def test_limits_of_a_run_are_checked(refuse):
    assert "judge.concurrency=0" in refuse("", "judge.concurrency=0")
    assert "judge.max_failure_share=2" in refuse("", "judge.max_failure_share=2")
    judge = "judge: {max_cost: 1, train: {name: llm, model: m}}"
    assert "judge.max_cost needs judge.train.price_in and judge.train.price_out" in refuse(judge)


def test_overrides_without_a_config_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script", "quickstart", "--set", "seed=1"])
    with pytest.raises(SystemExit):
        report.main()
    assert "--set changes a key of a config; name it with --config" in capsys.readouterr().err


def test_no_two_servers_have_one_port_by_default():
    addresses = [Config().rollout.server_url]
    addresses += [yaml.safe_load(path.read_text(encoding="utf-8")).get("base_url") or "" for path in JUDGES]
    ports = [urlsplit(address).port for address in addresses if "127.0.0.1" in address]
    assert len(ports) == len(set(ports)) == 4


@pytest.mark.parametrize("name", ["reference", "checkpoints", "judge"])
def test_what_is_evaluated_is_not_called_as_another_key_of_the_summary(name, refuse):
    """One would overwrite the other, after the evaluation."""
    assert f"evaluate: {name} is what summary.json calls something else" in refuse(
        "", f"evaluate.checkpoints={{{name}: x}}"
    )
