"""A YAML, its bases and overrides make a config that reads back equal, or are refused in one line."""

import dataclasses
import itertools
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_type_hints
from urllib.parse import urlsplit

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from scripts import run_python

from arenarl.config import schema as config_module
from arenarl.config.checks import check_groups
from arenarl.config.load import config_to_yaml, load_config
from arenarl.config.schema import Config
from arenarl.report import __main__ as report
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT

# folders of configs/ whose YAMLs are not whole runs
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
    """Return `load(yaml_text, *overrides, name=text)`; the keyword arguments are further files of the folder."""

    def load(text, *overrides, **files):
        for name, content in (files | {"run": text}).items():
            (tmp_path / f"{name}.yaml").write_text(content, encoding="utf-8")
        return load_config(tmp_path / "run.yaml", list(overrides))

    return load


@pytest.fixture
def refuse(load):
    """Return `refuse(...)`, which takes the arguments of `load` and returns its one-line UserError."""

    def refuse(*arguments, **files):
        with pytest.raises(UserError) as caught:
            load(*arguments, **files)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return refuse


def test_every_yaml_an_empty_one_and_a_changed_config_read_back_equal(load):
    for path in YAMLS:
        config = load_config(path)
        assert load(config_to_yaml(config)) == config, path
        assert config.results_dir == config.run_dir, path  # a run changes no committed file
    assert load("") == Config()
    changed = load(
        "name: 变\njudge: {eval: [{noise: none}, {}]}\nevaluate: {checkpoints: {a: b}}",
        "rl.subtasks=[Search, M-Day]", "policy.model=Qwen/Qwen3-8B", "rl.epsilon_high=0.28", "sft.deepspeed=null",
    )  # fmt: skip
    assert load(config_to_yaml(changed)) == changed != Config()


@pytest.mark.parametrize(("text", "overrides", "wrong", "nearest"), [
    ("rolout: {}", [], "rolout", "rollout"),
    ("policy: {scratch: {hiden_size: 4}}", [], "policy.scratch.hiden_size", "policy.scratch.hidden_size"),
    ("judge: {eval: [{}, {sigma_cal: 1}]}", [], "judge.eval.1.sigma_cal", "judge.eval.1.sigma_call"),
    ("", ["sed=1"], "sed", "seed"), ("", ["judge.train.noize=none"], "judge.train.noize", "judge.train.noise"),
    ("", ["judge.eval.0.noize=none"], "judge.eval.0.noize", "judge.eval.0.noise"),
    ("", ["judge.eval=[{noize: none}]"], "judge.eval.0.noize", "judge.eval.0.noise"),
])  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(refuse, text, overrides, wrong, nearest):
    message = refuse(text, *overrides)
    assert re.search(rf"(?<![\w.]){re.escape(wrong)}(?![\w.])", message) and f"did you mean {nearest}?" in message
    assert (f"--set {overrides[0].partition('=')[0]}: " if overrides else "run.yaml") in message


def test_a_key_without_a_near_match_is_refused_with_the_known_keys(refuse):
    message = refuse("tournament: {xyzzy: 1}")
    assert all(field.name in message for field in dataclasses.fields(config_module.TournamentConfig))
    assert refuse("", "judge.train.qqqqqqqqqqqqqqq=1").endswith(", …")


@pytest.mark.parametrize(("key", "choice"), [
    ("tournament.topology", "round_robin"), ("tournament.placement", "algorithm1"),
    ("reward.name", "pointwise_answer"), ("policy.dtype", "float32"), ("data.language", "en"),
    ("environment.results", "compact"), ("judge.train.noise", "none"), ("rl.importance_sampling_level", "sequence"),
    ("rl.loss_type", "dapo"), ("wandb.mode", "offline"),
])  # fmt: skip
def test_a_value_outside_the_choices_is_refused_with_the_choices(load, refuse, key, choice):
    message = refuse("", f"{key}=nonsense")
    assert key in message and choice in message
    assert f": {choice}\n" in config_to_yaml(load("", f"{key}={choice}"))


LLMS = [
    "judge.train", "judge.watch", "judge.eval.0", "judge.verifier", "environment.tickets", "environment.search.snippet",
    "environment.search.summary", "data.research.rephraser", "build.refiner",
]  # fmt: skip


@pytest.mark.parametrize("section", LLMS)
def test_a_model_that_the_embedded_stand_in_would_ignore_is_refused(refuse, section):
    """Without `name: llm` the simulated judge would run, and its figures would pass for the model's."""
    watch = ["judge.watch_share=0.5"] if section == "judge.watch" else []
    for key in ("model=gpt-5-mini", "base_url=http://localhost:8000/v1"):
        message = refuse("judge: {eval: [{name: embedded}]}", f"{section}.{key}", *watch)
        assert f"{section}.{key.split('=')[0]} would be ignored" in message and f"{section}.name is embedded" in message


@pytest.mark.parametrize("section", ["judge.train", "judge.watch", "judge.eval.0"])
def test_noise_of_a_judge_that_is_not_simulated_is_refused(refuse, load, section):
    model = ["judge.watch_share=0.5", f"{section}.name=llm", f"{section}.model=m"]
    for key in ("noise=none", "sigma_call=2", "trigger_bias=1", "turn_error_rate=0"):
        name = f"{section}.{key.partition('=')[0]}"
        assert f"{name} would be ignored: {section}.name is llm" in refuse("", *model, f"{section}.{key}")
    assert "set it to embedded, or" in refuse("", *model, f"{section}.rounding=1.0")
    assert f"{section}.explain would be ignored" in refuse("", model[0], f"{section}.explain=true")
    load("", *model, f"{section}.explain=true")
    load("", model[0], f"{section}.name=my:Judge", f"{section}.explain=true", f"{section}.noise=none")


def test_overrides_come_before_the_file_and_its_base_and_an_empty_mapping_clears_one(load):
    parent = "seed: 3\nrollout: {max_turns: 4, group_size: 6}"
    config = load("base: parent.yaml\nrollout: {max_turns: 5}", "threads=4", "threads=5", parent=parent)
    assert (config.seed, config.rollout.max_turns, config.rollout.group_size, config.threads) == (3, 5, 6, 5)
    parent = (
        "evaluate: {checkpoints: {one: a}, api: {two: {name: llm, model: b}}}\n"
        "judge: {train: {name: llm, model: m, extra_body: {x: {y: 1}}}}"
    )

    def changed(*overrides, text="base: parent.yaml"):
        config = load(text, *overrides, parent=parent)
        return config.evaluate, config.judge.train

    assert changed("evaluate.checkpoints={three: c}")[0].checkpoints == {"one": "a", "three": "c"}
    assert changed("evaluate.checkpoints={}", "evaluate.checkpoints.three=c")[0].checkpoints == {"three": "c"}
    assert changed(text="base: parent.yaml\nevaluate: {api: {}}")[0].api == {}
    assert changed("judge.train.extra_body={}")[1].extra_body == {}
    assert changed("judge.train.extra_body.x={}")[1].extra_body == {"x": {}}
    assert changed("judge={}")[1].model == "m"  # a section is never cleared


def test_mistakes_in_a_base_are_refused(refuse):
    assert "rollout" in refuse("base: parent.yaml", parent="rolout: {}")
    assert "grandparent.yaml: seed=x" in refuse(
        "base: parent.yaml", parent="base: grandparent.yaml", grandparent="seed: x"
    )
    for start in ("parent", "grandparent"):
        message = refuse("base: parent.yaml", parent="base: grandparent.yaml", grandparent=f"base: {start}.yaml")
        assert "leads back to the same file" in message and message.count(start) >= 2
    for text in ("base: 5", "base: [a.yaml]"):
        assert "base must be the path" in refuse(text)


def test_a_sections_base_replaces_earlier_values_and_comes_before_the_sections_own_keys(load, refuse):
    judge = "name: llm\nmodel: a\ntemperature: null\nextra_body: {x: 1}\n"
    train = load("judge: {train: {model: b, base: part.yaml}}", part=judge).judge.train
    assert (train.model, train.temperature, train.extra_body) == ("b", None, {"x": 1})
    first = "judge: {train: {noise: none, rounding: 1}}"
    train = load("base: first.yaml\njudge: {train: {base: part.yaml}}", first=first, part=judge).judge.train
    assert (train.model, train.noise, train.rounding) == ("a", "simulated", 0.5)
    assert "does not exist" in refuse("judge: {train: {base: nowhere.yaml}}")
    wrong = refuse("judge: {train: {base: part.yaml}}", part="modle: a")
    assert "part.yaml: unknown key judge.train.modle; did you mean judge.train.model?" in wrong
    chain = {"part": "base: first.yaml\nmodel: c", "first": judge}
    train = load("judge: {train: {base: part.yaml, explain: true}}", **chain).judge.train
    assert (train.model, train.explain, train.extra_body) == ("c", True, {"x": 1})
    assert "leads back" in refuse("judge: {train: {base: part.yaml}}", part="base: part.yaml")


def test_a_missing_file_or_base_names_the_nearest_relative_to_its_yaml(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"configs/quikstart\.yaml does not exist; did you mean configs/quickstart\.y"):
        load_config("configs/quikstart.yaml")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run.yaml"
    for text, base in itertools.product(
        ("base: %s", "judge: {train: {base: %s}}"),
        ("judges/opena.yaml", "configs/judges/openai.yaml", "../judges/openai.yml", "quikstart.yaml"),
    ):
        run.write_text(text % base)
        with pytest.raises(UserError, match=f"{run}: base={base} does not exist; .* relative to the YAML") as error:
            load_config(run)
        (suggested,) = re.findall(r"did you mean (\S+)\?", str(error.value))
        assert (tmp_path / suggested).is_file(), error.value
        with pytest.raises(UserError, match="run.yaml: base=nowhere.yaml does not exist"):
            run.write_text(text % "nowhere.yaml")
            load_config("run.yaml")
    how = r" does not exist \(the current folder is .*\); did you mean configs/judges/openai.yaml\?"
    with pytest.raises(UserError, match="--set judge.train.base: base=judges/opena.yaml" + how):
        load_config("configs/quickstart.yaml", ["judge.train.base=judges/opena.yaml"])
    with pytest.raises(UserError, match="nowhere.yaml does not exist ") as error:
        load_config("nowhere.yaml")
    assert str(error.value).endswith(f"(the current folder is {tmp_path})")


def test_overrides_take_the_type_of_their_key(load):
    config = load(
        "", "sft.learning_rate=2e-5", "rollout.anchor=false", "name=12", "policy.model=null", "data.folder=a=b",
        "rl.subtasks=[Search, Compare]", "judge.eval.0.noise=none", "rl.epsilon_high=1",
        "evaluate.checkpoints={one: x}",
    )  # fmt: skip
    assert (config.sft.learning_rate, config.rollout.anchor, config.name, config.policy.model, config.data.folder) == (
        2e-5, False, "12", None, "a=b",
    )  # fmt: skip
    assert config.rl.subtasks == ["Search", "Compare"] and config.judge.eval[0].noise == "none"
    assert repr(config.rl.epsilon_high) == "1.0" and config.evaluate.checkpoints == {"one": "x"}


@pytest.mark.parametrize("override", [
    "seed", "=3", "seed=[1", "rollout.group_size.more=3", "judge.eval.5.noise=none", "judge.eval.noise=none",
    "name=${nowhere}", "rollout=5", "judge.train=embedded", "judge.eval=none", "rl.subtasks=[[Search]]",
])  # fmt: skip
def test_a_malformed_override_is_refused(refuse, override):
    assert override.split("=")[0] in refuse("", override)


@pytest.mark.parametrize(("text", "part"), [
    ("rl:", "rl is a section with keys of its own, not null"), ("rl: true", "of its own, not true"),
    ('judge: {train: ["a"]}', 'of its own, not ["a"]'), ("judge: {train: {base: null}}", "path of a YAML, not null"),
])  # fmt: skip
def test_errors_name_a_wrong_value_as_it_stands_in_a_yaml(refuse, text, part):
    assert refuse(text).endswith(part)


@pytest.mark.parametrize("item", ["{sigma_call: fast}", "3", "{rounding: .nan}"])
def test_a_mistake_in_an_item_of_a_list_is_refused_by_its_full_path(refuse, item):
    for arguments in (("", f"judge.eval=[{{}}, {item}]"), (f"judge: {{eval: [{{}}, {item}]}}",)):
        assert "judge.eval.1" in refuse(*arguments)


def test_the_command_prints_the_resolved_config_or_refuses_a_mistake_in_one_line(load):
    def run(override):
        return run_python(ROOT, ["-m", "arenarl.config", "--config", "configs/quickstart.yaml", "--set", override])

    done = run("seed=3")
    assert done.returncode == 0 and done.stderr == ""
    assert load(done.stdout) == load_config(ROOT / "configs" / "quickstart.yaml", ["seed=3"])
    done = run("sed=3")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and "did you mean seed?" in done.stderr


STAGE = "reward.name=tournament_grpo"


@pytest.mark.parametrize(("overrides", "part"), [
    (["tournament.matches=lots"], "2n-2"), (["tournament.timeout_s=0"], "tournament.timeout_s"),
    (["tournament.topology=balanced", "tournament.ranking=bracket"], "did you mean 'scores'"),
    (["tournament.matches=0"], "tournament.matches=0: 2 entrants would play 0 matches"),
    (["tournament.matches=-3"], "write n-1 or 2n-2"), (["tournament.matches=n-2"], "2 entrants would play 0"),
    (["tournament.matches=n/1000"], "matches=n/1000"), (["tournament.matches=7"], "16 entrants would play 7"),
    (["policy.scratch.num_heads=7"], "num_heads=7: must be a multiple of policy.scratch.num_kv_heads=4"),
    (["policy.scratch.head_dim=7"], "policy.scratch.head_dim=7: must be a multiple of 2"),
    (["policy.scratch.vocab_size=300"], "policy.scratch.vocab_size=300: must not be below 512"),
    (["rl.difficulty.low=0.8"], "rl.difficulty.low=0.8: must not be above rl.difficulty.high=0.75"),
    (["data.sft_size=1", "sft.epochs=0.2"], "sft.epochs=0.2"), (["rl.lr_scheduler=cosin"], "did you mean cosine?"),
    (["rl.warmup_steps=3"], "rl.warmup_steps=3: needs rl.lr_scheduler=constant_with_warmup, not constant"),
    (["rl.warmup_steps=500", "rl.lr_scheduler=linear"], "rl.warmup_steps=500: must be below rl.steps"),
    (["judge.train.name=embeded"],
     "own as package.module:Class; did you mean embedded?; for a model, set base to a file of configs/judges"),
    (["tournament.topology=group_stage"], "; the group stage is reward.name=tournament_grpo"),
    (["rl.lr=1"], "unknown key rl.lr; known: lr_scheduler, "),
    (["judge.train.api_key_variable=sk-1234"],
     "judge.train.api_key_variable: must be the name of an environment variable, not its value"),
    (["policy.model=1.50"], "policy.model=1.5: must be text; what looks like a number or a truth value needs quotes"),
    (["policy.model=" + "变" * 70], "no part between two / may have more than 200 bytes"),
    (["rollout.anchor=yes"], "rollout.anchor=yes: must be true or false"),
    (["environment.search.device=gpu"], "such as cpu, cuda or cuda:1"),
    (["environment.name=research", "environment.search.dense=true"], "needs environment.search.embedder, such as"),
    (["environment.name=research", "environment.search={dense: true, engine: web}"], "needs a local engine"),
    ([STAGE, "group_stage.winners=4"], "group_stage.winners=4"), ([STAGE, "group_stage.weights=[]"], "group_stage.w"),
    ([STAGE, "group_stage.final=1"], "group_stage.final=1"), ([STAGE, "group_stage.repeats=0"], "stage.repeats=0"),
    (["rollout.turn_schedule=[]"], "rollout.turn_schedule=[]: must name horizons"),
    (["rollout.turn_schedule=[0,2]"], "rollout.turn_schedule.0=0: must be above 0"),
    (["rollout.turn_schedule=[2,2,4]"], "each larger than the one before"),
    (["rollout.turn_schedule=[2,13]"], "13 is above max_turns=12"),
    (["rollout.turn_schedule=[2,4]", "rollout.turns_every=0"], "rollout.turns_every=0: must be above 0"),
    (["rollout.turns_every=5"], "rollout.turns_every=5 needs stages"),
    (["rollout.turn_schedule=[2,4,8]", "rollout.turns_every=50", "rl.steps=100"], "begin at step 100, but the run"),
    (["rollout.turn_schedule=[2,4,8]", "rl.steps=2"], "would begin at step 2, but the run ends at rl.steps=2"),
    (["evaluate.max_turns=[]"], "evaluate.max_turns=[]"), (["evaluate.max_turns=[8,2]"], "larger than the one before"),
    (["evaluate.max_turns=[0,2]"], "evaluate.max_turns.0=0: must be above 0"),
    (["evaluate.samples=0"], "evaluate.samples=0: must be above 0"),
    (["evaluate.samples=2", "evaluate.decodings=[greedy]"], "add sampled to evaluate.decodings"),
    (["evaluate.decodings=[greedy, greedy]"], "names a decoding twice, so its figures would count twice; leave"),
    (["judge.eval.1.name=llm"],
     "unknown key judge.eval.1; judge.eval has 1 entry, numbered from 0; to add one, set the whole list"),
    (["judge.eval=[{}, {}]", "judge.eval.noise=none"], "judge.eval has 2 entries"),
    *(([override], "; YAML needs a space after the colon")
      for override in ("judge.eval={name:llm}", "judge.eval=[{name:llm}]", "judge.train=name:llm")),
    (["data.research.hop_weights=[]"], "hop_weights=[]: name a weight"),
    (["data.research.hop_weights=[0,0]"], "name a weight"),
    (["data.research.hop_weights=[1,-1]"], "must not be below 0"),
    (["data.research.branching=[1,1]"], "at most 3 entities"),
    (["data.research.rephraser.name=llm"], "data.research.rephraser.model is missing"),
    (["build.generators=[{}, {model: x}]"], "build.generators.1.model would be ignored"),
    (["judge.train={name: llm}"], "judge.train.model is missing"),
    (["judge.train={name: llm, model: m, base_url: http://h/v1/chat/completions/}"], "base_url: leave /chat/complet"),
    (["judge.train={name: llm, model: m, extra_body: {stream: true}}"], "extra_body.stream: replies are read whole"),
    (["judge.train={name: llm, model: m}", "judge.max_cost=1"],
     "judge.max_cost needs judge.train.price_in and judge.train.price_out"),
    *([[f"evaluate.checkpoints={{{name}: x}}"], f"evaluate: the name {name} is a field of summary.json"]
      for name in ("reference", "checkpoints", "judge")),  # the policy's figures would overwrite the field
])  # fmt: skip
def test_settings_that_would_train_nothing_or_fail_later_are_refused(refuse, overrides, part):
    message = refuse("", *overrides)
    assert part in message


@pytest.mark.parametrize("key", ["judge.train.base_url", "rollout.server_url", "environment.search.web.endpoint"])
def test_an_invalid_address_or_one_with_a_password_is_refused(refuse, key):
    for url in (
        "http://", "host", "ftp://host", "http://[", "http://h:99999", "http://h:0", "http://:pw@h", "http://pw@h/v1",
        "http://a b", "http://h/?pw",
    ):  # fmt: skip
        message = refuse(f"{{{key.replace('.', ': {')}: '{url}'{'}' * key.count('.')}}}")
        assert f"{key} must be an http(s) address" in message and "pw" not in message


@pytest.mark.parametrize("matches", ["n/2", "n-1", "n", "2n-2", "8", "16", "1000"])
def test_match_counts_that_let_every_trajectory_play_are_accepted(load, matches):
    assert load("", "tournament.topology=balanced", f"tournament.matches={matches}").tournament.matches == matches


@pytest.mark.parametrize("key", ["name", "rl.init_run"])
def test_run_names_cannot_leave_the_folder_of_runs(refuse, load, key):
    for name in (
        "../x", "..", ".", "''", "/etc/x", "a/../../x", "a//b", "a/", ".hidden", "a/.b", "-x", "a b", "a\\b",
        '"a\\nb"', "~/x", "x" * 150,
    ):  # fmt: skip
        message = refuse("", f"{key}={name}")
        assert key in message.removeprefix(f"--set {key}: ") and "must be a" in message
    for name in ("quickstart", "tables/cold-start", "qwen2.5_7B", "变", "2026-01-01", "a/b/c/d"):
        config = load("", f"name={name}", f"rl.init_run={name}")
        assert config.run_dir == Path("runs") / name and config.sft_policy == f"runs/{name}/sft"


NO_PATHS = {  # keys that hold other texts
    "LLMConfig.model", "LLMConfig.base_url", "GeneratorConfig.style", "DataConfig.subtasks", "BuildConfig.subtasks",
    "RLConfig.subtasks", "RenamedToolConfig.tool", "RenamedToolConfig.arguments", "MCPServerConfig.url",
    "MCPServerConfig.allow", "MCPServerConfig.env", "WebConfig.endpoint", "WebConfig.parameters",
    "LLMConfig.extra_body", "EnvironmentConfig.server", "RolloutConfig.server_url", "TournamentConfig.matches",
    "NoiseConfig.trigger",
}  # fmt: skip


def test_every_path_key_names_the_home_folder_by_a_tilde_or_refuses_it(load, refuse, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept, expanded = set(), set()
    for section in SECTIONS:
        hints = get_type_hints(section, include_extras=True)
        for name in section.__annotations__:
            for value in ("~/x.md", ["~/x.md"], {"A": "~/x.md"}):
                with suppress(ValidationError):
                    value_read = str(TypeAdapter(hints[name]).validate_python(value))
                    if "~/x.md" in value_read or str(tmp_path) in value_read:
                        (kept if "~/x.md" in value_read else expanded).add(f"{section.__name__}.{name}")
    assert kept <= NO_PATHS and not kept & expanded and len(expanded) == 23
    (tmp_path / "mine.yaml").write_text("data: {folder: ~/data, source: ['~/a', a/~b]}")
    data = load("base: ~/mine.yaml", "rollout.system_prompt=~ is home").data
    assert (data.folder, data.source) == (f"{tmp_path}/data", [f"{tmp_path}/a", "a/~b"])
    for text, override in (("", "judge.store=~nobody-here/x"), ("base: ~nobody-here/x.yaml", "seed=1")):
        assert "~nobody-here is not a home folder of this machine; write the path out" in refuse(text, override)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".a", "a b"])
def test_checkpoint_names_with_other_characters_are_refused(refuse, load, name):
    assert f"evaluate.checkpoints.{name}: must be a " in refuse("", f"evaluate.checkpoints={{'{name}': x}}")
    assert load("", "evaluate.checkpoints={qwen2.5-7b: x}").evaluate.checkpoints == {"qwen2.5-7b": "x"}


@pytest.mark.parametrize("text", ["name: &a [*a]", "[" * 900, "a: 1\na: 2", "name: !!str x", '"\\ud800"', "a: b: c"])
def test_hostile_yaml_is_refused_in_one_line_in_files_bases_and_overrides(refuse, text):
    assert "run.yaml is not valid YAML" in refuse(text)
    assert "the value is not valid YAML" in refuse("", f"judge={text}")
    assert "part.yaml is not valid YAML" in refuse("judge: {train: {base: part.yaml}}", part=text)
    assert "part.yaml is not valid YAML" in refuse("base: part.yaml", part=text)
    assert "run.yaml must hold keys and values" in refuse("[1, 2]")


@pytest.mark.parametrize("override", [
    "a" * 100_000, "name=" + "a" * 100_000, "a" * 100_000 + "=1", "a." * 5000 + "a=1",
    "judge.train.extra_body." + "a." * 5000 + "a=1", "name=[\n1]", "na\nme=a",
], ids=range(7))  # fmt: skip
def test_overrides_of_any_size_are_refused_in_a_short_line(refuse, override):
    assert len(refuse("", override)) < 1000


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_groups_are_accepted_exactly_if_no_process_and_no_micro_batch_splits_them(processes):
    config = Config()
    for n, k, micro in ((n, k, micro) for n in (2, 5, 8, 16) for k in (1, 2, 6, 8) for micro in (1, 3, 4, 48)):
        config.rollout.group_size, config.rl.groups, config.rl.micro_batch_size = n, k, micro
        if k % processes == 0 and (k // processes * n) % micro == 0:
            check_groups(config, processes)
        else:
            with pytest.raises(UserError):
                check_groups(config, processes)


@pytest.mark.parametrize(("changes", "processes", "part"), [
    ({}, 0, "0 processes cannot train"), ({"groups": 6}, 4, "rl.groups=6 cannot be shared by 4 processes"),
    ({"micro_batch_size": 10}, 2, r"=10 does not divide the 24 traj.*\[1, 2, 3, 4, 6, 8, 12, 24\]"),
    ({"micro_batch_size": 10, "updates_per_rollout": 4}, 2, r"the 6 trajectories of a process and u.*\[1, 2, 3, 6\]"),
    ({"updates_per_rollout": 5}, 2, "rl.updates_per_rollout=5 does not divide the 24 trajectories of a process"),
    *(({"method": method, "groups": 8, "batch_size": 6}, 4, "rl.batch_size=6 cannot be shared by 4 pro.*iple of 4")
      for method in ("dpo", "agentevol")),
    ({"method": "dpo", "batch_size": 1}, 2, "rl.batch_size=1 cannot be shared by 2 processes"),
    ({"groups": 65}, 65, "judge.concurrency=64 cannot be shared by 65 processes; set it to 65 or more"),
])  # fmt: skip
def test_a_layout_that_would_split_a_group_or_a_batch_is_refused_with_the_numbers_to_change(changes, processes, part):
    config = Config(rl=dataclasses.replace(Config().rl, **{"groups": 6} | changes))
    config.rollout.group_size = 8
    with pytest.raises(UserError, match=part):
        check_groups(config, processes)


def test_runs_with_another_seed_get_their_own_folders():
    assert [Config(name="a", seed=seed).run_name for seed in (0, 1, 2)] == ["a", "a-seed1", "a-seed2"]
    assert str(Config(name="a", seed=1).run_dir) == "runs/a-seed1" and str(Config(name="a").results_dir) == "runs/a"


def test_every_key_has_a_comment():
    """The comment is on the key's line or on the next. A key that holds a section is explained in that section."""
    text = Path(config_module.__file__).read_text(encoding="utf-8")
    for section in SECTIONS:
        body = re.search(rf"^class {section.__name__}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)[0]
        inherited = {field.name for parent in section.__mro__[1:-1] for field in dataclasses.fields(parent)}
        for field in dataclasses.fields(section):
            if field.name not in inherited and field.type not in SECTIONS:
                assert re.search(rf"^    {field.name}: (.*  # |.*\n    # )", body, re.MULTILINE), (section, field.name)


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_every_judge_file_makes_a_judge_for_training_and_for_evaluation(path, load):
    config = load("", f"judge.train.base={path}", f"judge.eval=[{{base: {path}}}, {{}}]")
    train, variable = config.judge.train, config.judge.train.api_key_variable
    assert train == config.judge.eval[0] and train.name == ("embedded" if path.stem == "embedded" else "llm")
    assert config.judge.eval[1] == config_module.JudgeConfig() and load(config_to_yaml(config)) == config
    assert "sk-" not in path.read_text(encoding="utf-8") and (variable is None or variable.endswith("_API_KEY"))


def test_overrides_without_a_config_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script", "quickstart", "--set", "seed=1"])
    with pytest.raises(SystemExit):
        report.main()
    assert "--set changes a key of a config; name the config with --config" in capsys.readouterr().err


def test_no_two_servers_have_one_port_by_default():
    addresses = [Config().rollout.server_url]
    addresses += [yaml.safe_load(path.read_text(encoding="utf-8")).get("base_url") or "" for path in JUDGES]
    ports = [urlsplit(address).port for address in addresses if "127.0.0.1" in address]
    assert len(ports) == len(set(ports)) == 4
