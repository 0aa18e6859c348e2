"""`rollout.system_prompt`: its default, its file beside the weights, and equal prompts in SFT, RL and evaluation."""

import json
from itertools import product

import pytest
from policies import Scripted

from arenarl.config.load import load_config
from arenarl.config.schema import Config, RolloutConfig
from arenarl.evaluation.parts import fingerprint
from arenarl.rollout import system_prompt as prompts
from arenarl.rollout.backends import make_engine
from arenarl.rollout.engine import Attempt
from arenarl.rollout.system_prompt import default_prompt, keep_system_prompt, system_prompt
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.training.difficulty import rate_settings
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.trajectory import assistant_text, with_system_prompt

QUICKSTART = CONFIGS / "quickstart.yaml"
PROMPT = "You plan journeys.\nAnswer in <answer> tags."


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Leave this clone's folder, whose runs store system prompts."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def engine_of(tokenizer, compact, monkeypatch):
    """A function that makes a config's engine without its generator."""
    monkeypatch.setattr("arenarl.rollout.backends._make_generator", lambda *_: None)
    return lambda config: make_engine(config, tokenizer, lambda: compact)


def prompt_of(*overrides, stage="rl"):
    return system_prompt(load_config(QUICKSTART, list(overrides)), stage)


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
def test_pretrained_models_have_a_default_prompt_and_policies_from_scratch_none(overrides, expected):
    assert prompt_of(*overrides) == expected


def test_the_default_without_tools_mentions_none_and_has_the_same_form_of_an_answer():
    defaults = {key: default_prompt(*key) for key in product(("en", "zh"), (True, False))}
    assert len(set(defaults.values())) == 4
    assert all("<answer>" in text and "</answer>" in text for text in defaults.values())
    assert not any(word in defaults[language, False] for language in ("en", "zh") for word in ("tool", "工具"))


@pytest.fixture
def trained(tmp_path):
    """`trained(run, stage, *overrides)` writes a stage's system prompt and returns the stage's folder."""

    def write(run, stage, *overrides):
        folder = tmp_path / "runs" / run / stage
        (folder / "checkpoint-8").mkdir(parents=True)
        keep_system_prompt(load_config(QUICKSTART, [f"name={run}", *overrides]), folder, stage)
        return folder

    return write


OWN = "rollout.system_prompt=You are X."
MODEL = "policy.model=Qwen/Qwen3-8B-Base"
STARTS = [[start] for start in (
    "name=a", "rl.init_run=a", "rl.init=runs/a/sft", "rl.init=runs/a/sft/checkpoint-8", "rl.init=runs/b/rl",
)]  # fmt: skip


@pytest.mark.parametrize("sft", [[], [OWN], [MODEL], [MODEL, "rollout.system_prompt=none"]])
@pytest.mark.parametrize("start", STARTS)
def test_rl_and_evaluation_use_the_prompt_of_the_sft_policy_that_they_start_from(trained, sft, start):
    trained("a", "sft", *sft)
    trained("b", "rl", "rl.init_run=a")
    for model in ([], [MODEL]):
        assert prompt_of(*model, *start) == prompt_of(*sft, stage="sft")
        assert prompt_of(*model, *start, "rollout.system_prompt=Be brief.") == "Be brief."


def test_sft_uses_the_prompt_of_its_start_and_a_folder_without_the_file_holds_a_pretrained_model(trained):
    folder = trained("a", "sft", OWN)
    assert prompt_of("name=a", stage="sft") is None
    assert prompt_of("name=a", MODEL, stage="sft") == default_prompt("en")
    assert prompt_of("name=a", "policy.model=runs/a/sft", stage="sft") == "You are X."
    (folder / "system_prompt.json").unlink()
    assert prompt_of("rl.init=runs/a/sft") == default_prompt("en")
    assert prompt_of("name=a") is None  # from scratch


@pytest.mark.parametrize("start", STARTS[:4])
def test_a_policy_of_a_version_that_stored_no_prompt_is_refused_unless_it_had_none(trained, start):
    folder = trained("a", "sft", OWN)
    (folder / "system_prompt.json").unlink()
    (folder / "provenance.json").write_text('{"system_prompt": "1a2b3c4d5e6f"}')
    with pytest.raises(UserError, match="lacks system_prompt.json.*set rollout.system_prompt"):
        prompt_of(*start)
    assert prompt_of(*start, OWN) == "You are X."
    (folder / "provenance.json").write_text(json.dumps({"system_prompt": prompts.prompt_name(default_prompt("en"))}))
    assert prompt_of(*start) == default_prompt("en")
    (folder / "provenance.json").write_text('{"system_prompt": null}')
    assert prompt_of("name=a") is None


def test_a_prompt_that_the_config_does_not_set_and_policies_with_another_are_printed(trained, tmp_path, capsys):
    trained("a", "sft", OWN)
    trained("b", "sft")
    for overrides, prompt in (
        (["name=a"], "as in runs/a/sft: You are X."), (["name=b", MODEL], "as in runs/b/sft: none"),
        ([MODEL], f"our default: {prompts.preview(default_prompt('en'))}"), (["name=b"], ""), ([OWN], ""),
    ):  # fmt: skip
        keep_system_prompt(load_config(QUICKSTART, overrides), tmp_path, "rl")
        line = f"system prompt, {prompt}; rollout.system_prompt sets another\n"
        assert capsys.readouterr().out == (line if prompt else "")
    policies = {"one": "runs/a/sft", "other": "runs/b/sft", "hub": "Qwen/Qwen3-8B"}
    prompts.say_prompts(load_config(QUICKSTART, ["name=b"]), policies)
    warning = "one was trained with another system prompt (You are X.) than evaluation uses (none)"
    assert capsys.readouterr().out == f"{warning}; evaluate it with its own config\n"


def test_a_file_holds_the_text_and_a_change_of_it_is_noticed(trained, tmp_path, capsys):
    path = tmp_path / "prompt.txt"
    path.write_text(f"{PROMPT}\n", encoding="utf-8")
    trained("a", "sft", "rollout.system_prompt=prompt.txt")
    config, fingerprints = load_config(QUICKSTART, ["rollout.system_prompt=prompt.txt"]), []
    for text in (PROMPT, "Be brief."):
        path.write_text(text, encoding="utf-8")
        assert system_prompt(config) == text
        prompts.say_prompts(config, {"one": "runs/a/sft"})
        warning = "than evaluation uses (Be brief.)"
        assert (warning in capsys.readouterr().out) == (text != PROMPT)
        fingerprints.append((fingerprint(config, "nowhere"), rate_settings(config, "nowhere")))
    assert all(first != second for first, second in zip(*fingerprints, strict=True))


def test_an_empty_or_missing_file_is_refused(tmp_path):
    (tmp_path / "empty.md").write_text(" \n")
    with pytest.raises(UserError, match="empty.md is empty; write none for no system prompt"):
        prompt_of(f"rollout.system_prompt={tmp_path / 'empty.md'}")
    with pytest.raises(UserError, match="rollout.system_prompt=nowhere.txt does not exist"):
        prompt_of("rollout.system_prompt=nowhere.txt")
    with pytest.raises(UserError, match="system_prompt.*must be text, of 1 to 20000 characters"):
        prompt_of("rollout.system_prompt=' '")


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize("prompt", [None, PROMPT])
def test_sft_and_rollouts_start_from_equal_tokens(prompt, schemas, engine_of, taught, tokenizer, compact, tmp_path):
    """This also holds if a record has a system message of its own."""
    config = Config(rollout=RolloutConfig(system_prompt=prompt, max_turns=12, max_tokens=2000, max_turn_tokens=500))
    config.environment.schemas_in_prompt = schemas
    query, messages, path = taught[0].query, taught[0].trajectory.messages, tmp_path / "sft.jsonl"
    versions = (messages, with_system_prompt(messages, "The teacher's own system prompt."))
    records = [{"query_id": "q", "messages": version, "tools": []} for version in versions]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    engine, turns = engine_of(config), [message for message in messages if message["role"] == "assistant"]
    engine.generator = Scripted(tokenizer, {query.query: list(map(assistant_text, turns))})
    (trajectory,) = engine.roll_out([Attempt(query, 0.0, 1)])
    assert trajectory.valid and trajectory.messages == with_system_prompt(messages, prompt)
    prompt_ids, whole = trajectory.prompt_ids, trajectory.prompt_ids + trajectory.completion_ids
    assert (PROMPT in tokenizer.decode(prompt_ids)) == bool(prompt)
    rows = tokenize_trajectories(path, tokenizer, compact.tools if schemas else None, 4096, system_prompt(config))
    assert [row["input_ids"][: len(whole)] for row in rows] == [whole, whole]
    if not prompt and not schemas:
        assert tokenizer.decode(prompt_ids) == f"<|im_start|>user\n{query.query}<|im_end|>\n<|im_start|>assistant\n"
