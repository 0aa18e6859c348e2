"""`rollout.system_prompt`: who is told what, and that SFT's labels, rollouts,
evaluation and pass rates take the same."""

import json
from itertools import product

import pytest
from policies import Scripted

from arenarl.config.load import load_config
from arenarl.config.schema import Config, RolloutConfig
from arenarl.evaluation.parts import fingerprint
from arenarl.rollout.backends import make_engine
from arenarl.rollout.engine import Attempt
from arenarl.rollout.system_prompt import (
    default_prompt,
    keep_system_prompt,
    prompt_name,
    say_prompts,
    shown,
    system_prompt,
)
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.training.difficulty import what_decides
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.trajectory import assistant_text, told

QUICKSTART = CONFIGS / "quickstart.yaml"
TOLD = "You plan journeys.\nAnswer in <answer> tags."


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Runs of this clone, such as the quickstart's, would say what their policies were told."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def engine_of(tokenizer, compact, monkeypatch):
    """An engine by a config, whose generator is set by hand."""
    monkeypatch.setattr("arenarl.rollout.backends._make_generator", lambda *_: None)
    return lambda config: make_engine(config, tokenizer, lambda: compact)


@pytest.mark.parametrize(("overrides", "expected"), [
    ([], None), (["rollout.system_prompt=none"], None), (["rollout.system_prompt=Be brief."], "Be brief."),
    (["policy.model=Qwen/Qwen3-8B-Base"], default_prompt("en")), (["rl.init=Qwen/Qwen3-8B"], default_prompt("en")),
    (["policy.model=Qwen/Qwen3-8B-Base", "data.language=zh"], default_prompt("zh")),
    (["policy.model=Qwen/Qwen3-8B-Base", "environment.name=none"], default_prompt("en", has_tools=False)),
    (["policy.model=Qwen/Qwen3-8B-Base", "environment.name=none", "data.language=zh"],
     default_prompt("zh", has_tools=False)),
    (["policy.model=Qwen/Qwen3-8B-Base", "rollout.system_prompt=none"], None),
    (["policy.model=Qwen/Qwen3-8B-Base", "rollout.system_prompt=Be brief."], "Be brief."),
])  # fmt: skip
def test_a_model_of_somebodys_is_told_the_form_of_an_answer_and_a_policy_from_scratch_nothing(overrides, expected):
    assert system_prompt(load_config(QUICKSTART, overrides)) == expected


def test_what_is_told_without_tools_speaks_of_none_and_asks_for_the_same_form_of_an_answer():
    told = {key: default_prompt(*key) for key in product(("en", "zh"), (True, False))}
    assert len(set(told.values())) == 4 and all("<answer>" in text and "</answer>" in text for text in told.values())
    assert not any(word in told[language, False] for language in ("en", "zh") for word in ("tool", "工具"))


@pytest.fixture
def trained(tmp_path):
    """`trained(run, stage, *overrides)` leaves what a stage leaves of its system prompt."""

    def leave(run, stage, *overrides):
        folder = tmp_path / "runs" / run / stage
        (folder / "checkpoint-8").mkdir(parents=True)
        keep_system_prompt(load_config(QUICKSTART, [f"name={run}", *overrides]), folder, stage)

    return leave


SAID = "rollout.system_prompt=You are X."
MODEL = "policy.model=Qwen/Qwen3-8B-Base"
STARTS = [
    ["name=a"],
    ["rl.init_run=a"],
    ["rl.init=runs/a/sft"],
    ["rl.init=runs/a/sft/checkpoint-8"],
    ["rl.init=runs/b/rl"],
]


@pytest.mark.parametrize("taught", [[], [SAID], [MODEL], [MODEL, "rollout.system_prompt=none"]])
@pytest.mark.parametrize("own", [[], [MODEL]])
@pytest.mark.parametrize("start", STARTS)
def test_rl_and_evaluation_tell_what_the_sft_that_they_start_from_taught_however_it_is_named(
    trained, taught, own, start
):
    trained("a", "sft", *taught)
    trained("b", "rl", "rl.init_run=a")
    expected = system_prompt(load_config(QUICKSTART, taught), "sft")
    assert system_prompt(load_config(QUICKSTART, [*own, *start])) == expected
    assert system_prompt(load_config(QUICKSTART, [*own, *start, "rollout.system_prompt=Be brief."])) == "Be brief."


def test_sft_goes_by_the_model_that_it_starts_from_and_not_by_what_lies_in_its_folder(trained):
    trained("a", "sft", SAID)
    assert system_prompt(load_config(QUICKSTART, ["name=a"]), "sft") is None
    assert system_prompt(load_config(QUICKSTART, ["name=a", MODEL]), "sft") == default_prompt("en")
    assert system_prompt(load_config(QUICKSTART, ["name=a", "policy.model=runs/a/sft"]), "sft") == "You are X."


def test_a_model_folder_without_the_file_is_a_model_of_somebodys(trained, tmp_path):
    trained("a", "sft", SAID)
    (tmp_path / "runs" / "a" / "sft" / "system_prompt.json").unlink()
    assert system_prompt(load_config(QUICKSTART, ["rl.init=runs/a/sft"])) == default_prompt("en")
    assert system_prompt(load_config(QUICKSTART, ["name=a"])) is None  # from scratch


@pytest.mark.parametrize("start", STARTS[:4])
def test_a_policy_of_a_version_that_did_not_keep_its_system_prompt_is_refused_unless_it_had_none(
    trained, tmp_path, start
):
    trained("a", "sft", SAID)
    folder = tmp_path / "runs" / "a" / "sft"
    (folder / "system_prompt.json").unlink()
    (folder / "provenance.json").write_text('{"system_prompt": "1a2b3c4d5e6f"}')
    with pytest.raises(UserError, match="lacks system_prompt.json.*set rollout.system_prompt"):
        system_prompt(load_config(QUICKSTART, start))
    assert system_prompt(load_config(QUICKSTART, [*start, SAID])) == "You are X."
    (folder / "provenance.json").write_text(json.dumps({"system_prompt": prompt_name(default_prompt("en"))}))
    assert system_prompt(load_config(QUICKSTART, start)) == default_prompt("en")
    (folder / "provenance.json").write_text('{"system_prompt": null}')
    assert system_prompt(load_config(QUICKSTART, ["name=a"])) is None


def test_a_line_says_what_is_told_where_the_config_does_not_and_who_was_trained_with_another(trained, tmp_path, capsys):
    trained("a", "sft", SAID)
    trained("b", "sft")
    for overrides, line in (
        (["name=a"], "system prompt, as in runs/a/sft: You are X.; rollout.system_prompt sets another\n"),
        ([MODEL], f"system prompt, our default: {shown(default_prompt('en'))}; rollout.system_prompt sets another\n"),
        (["name=b", MODEL], "system prompt, as in runs/b/sft: none; rollout.system_prompt sets another\n"),
        (["name=b"], ""), ([SAID], ""),
    ):  # fmt: skip
        keep_system_prompt(load_config(QUICKSTART, overrides), tmp_path, "rl")
        assert capsys.readouterr().out == line
    policies = {"one": "runs/a/sft", "other": "runs/b/sft", "hub": "Qwen/Qwen3-8B"}
    say_prompts(load_config(QUICKSTART, ["name=b"]), policies)
    told = "than it is told here (none); evaluate it by its own config"
    assert capsys.readouterr().out == f"one was trained with another system prompt (You are X.) {told}\n"


def test_a_file_that_was_edited_since_is_said(trained, tmp_path, capsys):
    (tmp_path / "told.txt").write_text("Be brief.", encoding="utf-8")
    trained("a", "sft", "rollout.system_prompt=told.txt")
    for text in ("Be brief.", "Be long."):
        (tmp_path / "told.txt").write_text(text, encoding="utf-8")
        say_prompts(load_config(QUICKSTART, ["rollout.system_prompt=told.txt"]), {"one": "runs/a/sft"})
        said = "prompt (Be brief.) than it is told here (Be long.)"
        assert (said in capsys.readouterr().out) == (text == "Be long.")


def test_a_file_holds_the_text_and_what_is_generated_depends_on_it(tmp_path):
    path = tmp_path / "told.txt"
    path.write_text(f"{TOLD}\n", encoding="utf-8")
    config = load_config(QUICKSTART, [f"rollout.system_prompt={path}"])
    assert system_prompt(config) == TOLD
    before = fingerprint(config, "nowhere"), what_decides(config, "nowhere")
    path.write_text("Be brief.", encoding="utf-8")
    after = fingerprint(config, "nowhere"), what_decides(config, "nowhere")
    assert before[0] != after[0] and before[1] != after[1]


def test_a_file_that_says_nothing_or_is_not_there_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty.md").write_text(" \n")
    with pytest.raises(UserError, match="empty.md is empty; write none for no system prompt"):
        system_prompt(load_config(QUICKSTART, [f"rollout.system_prompt={tmp_path / 'empty.md'}"]))
    with pytest.raises(UserError, match="rollout.system_prompt=nowhere.txt does not exist"):
        load_config(QUICKSTART, ["rollout.system_prompt=nowhere.txt"])
    with pytest.raises(UserError, match="system_prompt.*must be text, of 1 to 20000 characters"):
        load_config(QUICKSTART, ["rollout.system_prompt=' '"])


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize("said", [None, TOLD])
def test_sft_and_rollouts_start_from_the_same_tokens(said, schemas, engine_of, taught, tokenizer, compact, tmp_path):
    """Also where a record brings a system message of its own."""
    config = Config(rollout=RolloutConfig(system_prompt=said, max_turns=12, max_tokens=2000, max_turn_tokens=500))
    config.environment.schemas_in_prompt = schemas
    one, path = taught[0], tmp_path / "sft.jsonl"
    brought = [one.trajectory.messages, told(one.trajectory.messages, "Whatever the teacher was told.")]
    records = [{"query_id": "q", "messages": messages, "tools": []} for messages in brought]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    engine, turns = engine_of(config), [m for m in one.trajectory.messages if m["role"] == "assistant"]
    engine.generator = Scripted(tokenizer, {one.query.query: list(map(assistant_text, turns))})
    (trajectory,) = engine.roll_out([Attempt(one.query, 0.0, 1)])
    assert trajectory.valid and trajectory.messages == told(one.trajectory.messages, said)
    prompt, whole = trajectory.prompt_ids, trajectory.prompt_ids + trajectory.completion_ids
    assert (TOLD in tokenizer.decode(prompt)) == bool(said)
    rows = tokenize_trajectories(path, tokenizer, compact.tools if schemas else None, 4096, system_prompt(config))
    assert [row["input_ids"][: len(whole)] for row in rows] == [whole, whole]
    if not said and not schemas:
        assert tokenizer.decode(prompt) == f"<|im_start|>user\n{one.query.query}<|im_end|>\n<|im_start|>assistant\n"
