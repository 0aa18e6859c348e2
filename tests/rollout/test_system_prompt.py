"""`rollout.system_prompt`: who is told what, and that SFT's labels, rollouts, evaluation and pass rates take the same."""

import json

import pytest
from policies import Scripted

from arenarl.config.load import config_to_yaml, load_config
from arenarl.config.schema import Config, RolloutConfig
from arenarl.evaluation.parts import fingerprint
from arenarl.rollout.backends import make_engine
from arenarl.rollout.engine import Attempt
from arenarl.rollout.system_prompt import default_prompt, system_prompt
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.training.difficulty import settings_of
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.trajectory import assistant_text, told

QUICKSTART = CONFIGS / "quickstart.yaml"
TOLD = "You plan journeys.\nAnswer in <answer> tags."


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
    (["policy.model=Qwen/Qwen3-8B-Base", "environment.name=none", "data.language=zh"], default_prompt("zh", has_tools=False)),
    (["policy.model=Qwen/Qwen3-8B-Base", "rollout.system_prompt=none"], None),
    (["policy.model=Qwen/Qwen3-8B-Base", "rollout.system_prompt=Be brief."], "Be brief."),
])  # fmt: skip
def test_a_model_of_somebodys_is_told_the_form_of_an_answer_and_a_policy_from_scratch_nothing(overrides, expected):
    assert system_prompt(load_config(QUICKSTART, overrides)) == expected


def test_what_is_told_without_tools_speaks_of_none_and_asks_for_the_same_form_of_an_answer():
    told = {(language, has_tools): default_prompt(language, has_tools) for language in ("en", "zh") for has_tools in (True, False)}
    assert len(set(told.values())) == 4 and all("<answer>" in text and "</answer>" in text for text in told.values())
    assert not any(word in told[language, False] for language in ("en", "zh") for word in ("tool", "工具"))


@pytest.mark.parametrize("overrides", [[], ["rollout.system_prompt=Be brief."], ["policy.model=Qwen/Qwen3-8B-Base"]])
def test_what_a_stage_of_ours_trained_goes_on_with_what_it_was_told(tmp_path, overrides):
    trained = load_config(QUICKSTART, overrides)
    (tmp_path / "config.yaml").write_text(config_to_yaml(trained), encoding="utf-8")
    (tmp_path / "provenance.json").write_text("{}")
    assert system_prompt(load_config(QUICKSTART, [f"rl.init={tmp_path}"])) == system_prompt(trained)


def test_a_file_holds_the_text_and_what_is_generated_depends_on_it(tmp_path):
    path = tmp_path / "told.txt"
    path.write_text(f"{TOLD}\n", encoding="utf-8")
    config = load_config(QUICKSTART, [f"rollout.system_prompt={path}"])
    assert system_prompt(config) == TOLD
    before = fingerprint(config, "nowhere"), settings_of(config, "nowhere")
    path.write_text("Be brief.", encoding="utf-8")
    after = fingerprint(config, "nowhere"), settings_of(config, "nowhere")
    assert before[0] != after[0] and before[1] != after[1]


def test_a_file_that_says_nothing_or_is_not_there_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty.md").write_text(" \n")
    with pytest.raises(UserError, match="empty.md is empty; write none for no system prompt"):
        system_prompt(load_config(QUICKSTART, [f"rollout.system_prompt={tmp_path / 'empty.md'}"]))
    with pytest.raises(UserError, match="rollout.system_prompt=nowhere.txt: there is no such file"):
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
    path.write_text("".join(json.dumps({"query_id": "q", "messages": messages, "tools": []}) + "\n" for messages in brought))
    engine = engine_of(config)
    engine.generator = Scripted(tokenizer, {one.query.query: [assistant_text(m) for m in one.trajectory.messages if m["role"] == "assistant"]})
    (trajectory,) = engine.roll_out([Attempt(one.query, 0.0, 1)])
    assert trajectory.valid and trajectory.messages == told(one.trajectory.messages, said)
    prompt, whole = trajectory.prompt_ids, trajectory.prompt_ids + trajectory.completion_ids
    assert (TOLD in tokenizer.decode(prompt)) == bool(said)
    rows = tokenize_trajectories(path, tokenizer, compact.tools if schemas else None, 4096, system_prompt(config))
    assert [row["input_ids"][: len(whole)] for row in rows] == [whole, whole]
    if not said and not schemas:
        assert tokenizer.decode(prompt) == f"<|im_start|>user\n{one.query.query}<|im_end|>\n<|im_start|>assistant\n"
