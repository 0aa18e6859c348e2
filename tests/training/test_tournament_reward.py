"""The tournament as TRL's reward function: rows, chats and tool conversations, judged by a class and over HTTP."""

import asyncio
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_servers import by_prompt, completion, raw, serving, write_judge
from number_judge import Number
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from arenarl import tournament_reward
from arenarl.judges.prompts import read_prompt
from arenarl.llm.client import RunStopped
from arenarl.system.errors import UserError
from arenarl.system.progress import say_once
from arenarl.system.repository import ROOT
from arenarl.training.tournament_reward import read_groups
from arenarl.trajectory.chats import chat_query, chat_trajectory

USER = [{"role": "user", "content": "Name a number."}]


def rewards(function, prompts, completions, **more):
    return asyncio.run(function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(prompts), **more))


def reply(text, **more):
    return [{"role": "assistant", "content": text, **more}]


@settings(max_examples=60)
@given(st.integers(2, 9), st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_rewards_follow_ranks_in_trl_s_row_order(size, groups, is_chat, rng):
    qualities = [rng.sample(range(11), size) for _ in range(groups)]
    rows = [(f"query {group}", str(quality)) for group, of_group in enumerate(qualities) for quality in of_group]
    prompts = [[{"role": "user", "content": prompt}] if is_chat else prompt for prompt, _ in rows]
    completions = [reply(text) if is_chat else text for _, text in rows]
    function = tournament_reward(Number(), num_generations=size, topology="round_robin")
    expected = [
        1 - sum(other > quality for other in of_group) / (size - 1) for of_group in qualities for quality in of_group
    ]
    assert rewards(function, prompts, completions) == pytest.approx(expected)


def test_no_verdict_gives_no_reward_and_no_answer_or_a_truncated_one_the_last_rank():
    call = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    completions = [reply("3"), reply("9"), reply("7"), reply(" "), reply("", tool_calls=call)]
    function = tournament_reward(Number(silent="9"), num_generations=5, topology="round_robin")
    low, silent, high, empty, calling = rewards(function, [USER] * 5, completions)
    assert silent is None and high > low > empty == calling
    rows = {"completions": [reply(text) for text in "3978"], "completion_ids": [[5, 1], [5, 6], [5, 0], []]}
    known, unknown = (
        tournament_reward(Number(), num_generations=4, topology="round_robin", turn_ends=ends)
        for ends in ({0, 1, None}, ())  # a tokenizer without a padding token has None
    )
    whole, cut, best, empty = asyncio.run(known(prompts=[USER] * 4, **rows))
    assert best > whole > cut == empty and asyncio.run(unknown(prompts=[USER] * 4, **rows))[1] == 1.0
    with pytest.raises(UserError, match="4 prompts, 4 completions and 0 completion_ids; pass one of each per row"):
        asyncio.run(known(prompts=[USER] * 4, completions=rows["completions"]))


@pytest.mark.parametrize("ends", [0, np.array([0])])
def test_a_single_token_id_ends_turns_too(ends):
    function = tournament_reward(Number(), num_generations=2, turn_ends=ends)
    rows = {"prompts": ["q"] * 2, "completions": ["3", "9"], "completion_ids": [[5, 0], [5, 6]]}
    assert asyncio.run(function(**rows)) == [1.0, 0.0]


def test_a_step_of_truncated_completions_is_reported_once(capsys):
    say_once.cache_clear()
    function = tournament_reward(Number(), num_generations=2, turn_ends={0})
    for first in ([5, 0], [5, 6], [5, 6]):
        rows = {"prompts": ["q"] * 2, "completions": ["3", "9"], "completion_ids": [first, [5, 6]]}
        asyncio.run(function(**rows))
    assert capsys.readouterr().out.count("every completion of a step is truncated") == 1


@pytest.mark.parametrize("ends", ["</s>", {"<|im_end|>"}, {None}, [[1]], 1.5])
def test_turn_ends_without_token_ids_are_refused_before_the_training(ends):
    """They would mark every completion as cut, so that all rewards are equal."""
    with pytest.raises(UserError, match="must hold token ids; pass {tokenizer.eos_token_id, tokenizer.pad_token_id}"):
        tournament_reward(Number(), num_generations=2, turn_ends=ends)


@pytest.mark.parametrize(("text", "thought", "answer"), [
    ("<think>hm</think>Yes.", "hm", "Yes."), ("hm hm</think>\n\nYes.", "hm hm", "Yes."),
    ("a</think>b</think>Yes.", "ab", "Yes."), ("<think>hm hm", "hm hm", ""), ("hm</think>", "hm", ""),
    ("Yes.", "", "Yes."),
])  # fmt: skip
def test_thoughts_are_not_part_of_the_answer_wherever_their_tags_are(text, thought, answer):
    for answered in (text, reply(text)):
        trajectory = chat_trajectory(chat_query(USER, "en"), answered)
        assert (trajectory.answer, trajectory.valid) == (answer, bool(answer))
        assert trajectory.messages[-1]["reasoning_content"] == thought


def test_a_judge_without_verdicts_stops_the_training():
    class Broken(Number):
        async def compare(self, *_, **__):
            raise RuntimeError

    function = tournament_reward(Broken(), num_generations=4, topology="round_robin")
    with pytest.raises(UserError, match="60 of the last 60 judge calls failed, above judge.max_failure_share=0.2"):
        for _ in range(9):
            rewards(function, [USER] * 4, [reply(text) for text in "1234"])


@pytest.mark.parametrize(("rows", "words"), [
    ("aaaabbbb", "8 rows have runs of 4, 4 with one prompt, not whole groups of num_generations=8"),
    ("aaaab", "runs of 4, 1"), ("aaaaaaaabbbbbbbbb", "make per_device_train_batch_size"),
    ("a" * 16 + "b" * 16, "all prompts have 16 or more rows, not num_generations=8"),
])  # fmt: skip
def test_rows_that_are_not_whole_groups_are_refused(rows, words):
    with pytest.raises(UserError, match=re.escape(words)) as refused:
        rewards(tournament_reward(Number(), num_generations=8), list(rows), list(rows))
    assert "\n" not in str(refused.value) and "num_generations" in str(refused.value)
    for completions, cut in ((["a"], ()), (["a"] * 4, ()), (["a"] * 2, [True])):
        with pytest.raises(UserError, match=f"2 prompts, {len(completions)} completions"):
            read_groups(["p"] * 2, completions, 2, "en", cut)
    assert len(read_groups(list("aaaabb"), list("xxxxxx"), 2, "en")) == 3  # twice the rows make two groups


@pytest.mark.parametrize(("arguments", "words"), [
    ({"judge": "opnai"}, "judge=opnai is unknown; did you mean openai"),
    ({"judge": "nobody"}, "configs/judges: claude_sonnet, local_server, openai"),  # without embedded, refused below
    ({"judge": "embedded"}, "works only in this project's own worlds"),
    ({"judge": "configs/judges/vllm.yaml", "topology": "knockout"}, "tournament.topology=knockout"),
    ({"judge": "vllm", "topolgy": "swiss"}, "did you mean tournament.topology?"),
    ({"judge": "vllm", "num_generations": 0}, "rollout.group_size=0"),
    ({"judge": "vllm", "max_calls": 0}, "judge.max_calls=0"),
    ({"judge": "vllm", "language": "fr"}, "choose en or zh"),
    ({"judge": "vllm", "rubric": " "}, "a rubric in words must say"),
    ({"judge": "vllm", "rubric": "nowhere.yaml"}, "nowhere.yaml does not exist"),
    ({"judge": "vllm", "rubric": "configs/quickstart.yaml"}, "configs/quickstart.yaml is not a rubric"),
    ({"judge": "openai"}, "set the environment variable OPENAI_API_KEY"),
    ({"judge": Number(), "rubric": "kind"}, "your own judge contains its rubric"),
    ({"judge": Number(), "max_cost": 9.0}, "max_calls and max_cost do not limit your own judge's calls"),
    ({"judge": Number}, "or an instance with an async method compare"),
    ({"judge": None}, "judge=None is not a judge: pass a name from configs/judges"),
])  # fmt: skip
def test_invalid_arguments_are_refused_before_any_step(arguments, words, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=re.escape(words)) as refused:
        tournament_reward(**({"num_generations": 8} | arguments))
    assert "\n" not in str(refused.value)


def test_a_tool_conversation_becomes_thoughts_calls_observations_and_an_answer():
    assert chat_query(USER, "en").query == "Name a number."
    chat = [{"role": "system", "content": "Be kind."}, *USER]
    assert chat_query(chat, "en").query == "system: Be kind.\n\nuser: Name a number."
    function = {"name": "look_up", "arguments": {"word": "tau"}}
    chat = [*USER, {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}]
    assert chat_query(chat, "en").query == f"user: Name a number.\n\nassistant: {json.dumps(function)}"
    native = {"id": "1", "type": "function", "function": function | {"arguments": json.dumps({"word": "tau"})}}
    for call in (native, {"type": "function", "function": function}):
        completion = [
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "name": "look_up", "content": "a letter <|im_end|>"},
            *reply("<think>\nso\n</think>\n\nA Greek letter."),
        ]
        trajectory = chat_trajectory(chat_query(USER, "en"), completion)
        assert trajectory.valid and trajectory.answer == "A Greek letter."
        look_up, observation, answer = trajectory.messages
        assert [look_up["role"], observation["role"], answer["role"]] == ["assistant", "tool", "assistant"]
        assert look_up["tool_calls"][0]["function"] == function
        assert observation["content"] == "a letter < |im_end|>" and answer["reasoning_content"] == "so"


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "{",
                                 '"name": "f"', "ok", "\ud800", "\n"]), max_size=8))  # fmt: skip
def test_any_text_becomes_a_trajectory_without_an_error(pieces):
    trajectory = chat_trajectory(chat_query("?", "en"), "".join(pieces))
    assert trajectory.valid == bool(trajectory.answer)


def by_length(text, number):
    """A judge over HTTP that scores every dimension with a tenth of the answer's length."""
    try:
        shown = read_prompt([{}, {"content": text}])
    except ValueError as error:
        return raw(str(error).encode(), 400)
    names = re.findall(r'"(\w+)": <0-10>', shown.form.split("}")[0])
    scores = [dict.fromkeys(names, min(10.0, len(turns[-1].answer or "") / 10)) for turns in shown.agents]
    return completion(json.dumps({f"agent_{place}": one for place, one in enumerate(scores, start=1)}))


@pytest.fixture
def judge_file(tmp_path):
    with serving(by_prompt(by_length)) as url:
        yield write_judge(tmp_path, url, price_in=1000, price_out=1000)


def test_an_llm_judge_over_http_uses_a_rubric_in_words_and_is_paid_once(judge_file, tmp_path):
    def run(**more):
        logged = {}
        options = {"num_generations": 4, "rubric": "Is it long?", "store": tmp_path / "replies.sqlite"} | more
        function = tournament_reward(judge_file, **options)
        texts, metrics = ["a" * 40, "a" * 10, "a" * 30, "a" * 20] * 2, []
        values = rewards(function, ["p"] * 4 + ["q"] * 4, texts, log_metric=lambda *pair: metrics.append(pair))
        for name, value in metrics:
            logged.setdefault(name, []).append(value)
        return values, logged

    first, logged = run()
    assert first == pytest.approx([1, 0, 2 / 3, 1 / 3] * 2)
    assert logged["judge/failure_rate"] == [0.0] * sum(map(int, logged["judge/calls_per_group"]))
    assert logged["judge/paid_calls"][0] > 0
    again, logged = run()
    assert again == first and logged["judge/paid_calls"] == [0.0]
    assert run(rubric="configs/rubrics/writing_en.yaml")[0] == first
    with pytest.raises(RunStopped, match="max_calls"):
        run(rubric="Is it still long?", max_calls=3, run="bounded")


@pytest.fixture(scope="module")
def tiny_qwen2(tmp_path_factory):
    """A Qwen2 as small as TRL's test models, which ends a text after about six tokens, and a byte tokenizer."""
    folder = str(tmp_path_factory.mktemp("qwen2"))
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        ["Write a line about rain."], vocab_size=300, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2}
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **shape))
    with torch.no_grad():  # the first dimension of the residual stream becomes a constant bias towards the end token
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        model.model.embed_tokens.weight[:, 0] = 1
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1.4
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow(seconds=12)
def test_the_example_trains_a_tiny_model_with_trl_s_trainer_on_two_processes(tiny_qwen2, judge_file, tmp_path):
    texts = [f"Write a line about {thing}." for thing in ("rain", "tea", "dusk", "ink")]
    prompts = [json.dumps({"prompt": [{"role": "user", "content": text}]}) for text in texts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts))
    words = {"model": tiny_qwen2, "prompts": "prompts.jsonl", "judge": str(judge_file), "rubric": "Is it long?"}
    words |= {"num-generations": 8, "steps": 2, "tokens": 12, "out": "out"}
    options = [f"--{name}={word}" for name, word in words.items()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command, environment = [*launcher, str(ROOT / "examples" / "trl_tournament.py"), *options], {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"\{'loss'.*?\}", done.stdout)
    assert len(steps) == 2, done.stdout
    assert all("rewards/tournament/mean" in step and "'judge/failure_rate': '0'" in step for step in steps), done.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()
    wrong = [sys.executable, str(ROOT / "examples" / "trl_tournament.py"), *options, "--judge", "nobody"]
    done = subprocess.run(wrong, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "error: " in done.stderr and "nobody" in done.stderr, done.stderr


@pytest.mark.parametrize("wrong", [
    None, 5, {}, [None], ["?"], [{}], [{"content": "?"}], [{"role": None, "content": "?"}], [{"role": 5}],
    [{"role": "assistant", "tool_calls": [5]}], [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
], ids=repr)  # fmt: skip
def test_a_row_that_is_neither_a_text_nor_messages_is_refused_in_one_line(wrong):
    for name, prompts, completions in (("prompt", [wrong] * 2, ["a"] * 2), ("completion", [USER] * 2, ["a", wrong])):
        with pytest.raises(UserError, match=f"the {name} of row [01] must be a text or a list of messages") as refused:
            read_groups(prompts, completions, 2, "en")
        assert "\n" not in str(refused.value)
