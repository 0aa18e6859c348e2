"""The tournament as a reward function of TRL's: its rows, chats and tool conversations,
judged by a class and over HTTP, in its own trainer."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_servers import by_prompt, completion, raw, serving
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from arenarl import tournament_reward
from arenarl.judges.judge import Judge, Verdict
from arenarl.judges.prompts import read_prompt
from arenarl.llm.client import RunStopped
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.training.tournament_reward import read_groups, read_query, read_trajectory

USER = [{"role": "user", "content": "Name a number."}]


class Number(Judge):
    """The number that the answer is, of 10; None of a pair in which one is `silent`."""

    def __init__(self, silent=None):
        self.silent = silent

    def weights(self, query):
        return {"quality": 1.0}

    async def compare(self, query, first, second, repeat=0):
        if self.silent in (first.answer, second.answer):
            return None
        return Verdict(
            tuple({"quality": float(one.answer)} for one in (first, second)), lambda scores: scores["quality"]
        )


def rewards(function, prompts, completions, **more):
    return asyncio.run(function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(prompts), **more))


def says(text, **more):
    return [{"role": "assistant", "content": text, **more}]


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(2, 9), st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_rows_of_all_groups_get_the_rewards_of_their_ranks_in_trls_order(size, groups, is_chat, rng):
    qualities = [rng.sample(range(11), size) for _ in range(groups)]
    rows = [(f"query {group}", str(quality)) for group, of_group in enumerate(qualities) for quality in of_group]
    prompts = [[{"role": "user", "content": prompt}] if is_chat else prompt for prompt, _ in rows]
    completions = [says(text) if is_chat else text for _, text in rows]
    found = rewards(tournament_reward(Number(), num_generations=size, topology="round_robin"), prompts, completions)
    expected = [
        1 - sum(other > quality for other in of_group) / (size - 1) for of_group in qualities for quality in of_group
    ]
    assert found == pytest.approx(expected)


def test_a_trajectory_without_a_verdict_has_no_reward_and_one_without_an_answer_the_last():
    call = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    completions = [says("3"), says("9"), says("7"), says(" "), says("", tool_calls=call)]
    found = rewards(
        tournament_reward(Number(silent="9"), num_generations=5, topology="round_robin"), [USER] * 5, completions
    )
    assert found[1] is None and found[2] > found[0] > found[3] == found[4]


def test_what_was_cut_shares_the_last_rank_however_good_where_the_ends_are_known():
    completions, ids = [says("3"), says("9"), says("7"), says("8")], [[5, 1], [5, 6], [5, 0], []]
    known, unknown = (
        tournament_reward(Number(), num_generations=4, topology="round_robin", turn_ends=ends) for ends in ({0, 1}, ())
    )
    found = asyncio.run(known(prompts=[USER] * 4, completions=completions, completion_ids=ids))
    assert found[2] > found[0] > found[1] == found[3]
    assert asyncio.run(unknown(prompts=[USER] * 4, completions=completions, completion_ids=ids))[1] == 1.0


@pytest.mark.parametrize(("text", "thought", "answer"), [
    ("<think>hm</think>Yes.", "hm", "Yes."), ("hm hm</think>\n\nYes.", "hm hm", "Yes."),
    ("a</think>b</think>Yes.", "ab", "Yes."), ("<think>hm hm", "hm hm", ""), ("hm</think>", "hm", ""),
    ("Yes.", "", "Yes."),
])  # fmt: skip
def test_a_thought_is_none_of_the_answer_wherever_its_tags_are(text, thought, answer):
    for said in (text, says(text)):
        one = read_trajectory(read_query(USER, "en"), said)
        assert (one.answer, one.valid, one.messages[-1]["reasoning_content"]) == (answer, bool(answer), thought)


def test_a_judge_that_gives_no_verdict_ends_the_training():
    class Broken(Number):
        async def compare(self, *_, **__):
            raise RuntimeError

    function = tournament_reward(Broken(), num_generations=4, topology="round_robin")
    with pytest.raises(UserError, match="60 of the last 60 judge calls failed, above judge.max_failure_share=0.2"):
        for _ in range(9):
            rewards(function, [USER] * 4, [says(text) for text in "1234"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("aaaabbbb", "8 rows have runs of 4, 4 with one prompt, not whole groups of num_generations=8"),
        ("aaaab", "runs of 4, 1"),
        ("aaaaaaaabbbbbbbbb", "make per_device_train_batch_size"),
        ("a" * 16 + "b" * 16, "all prompts stand in 16 or more rows, not in num_generations=8"),
    ],
)
def test_rows_that_are_no_whole_groups_are_refused_in_a_line_that_says_what_to_change(rows, said):
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        rewards(tournament_reward(Number(), num_generations=8), list(rows), list(rows))
    assert "\n" not in str(refused.value) and "num_generations" in str(refused.value)


def test_equal_prompts_beside_others_are_groups_of_their_own():
    assert len(read_groups(list("aaaabb"), list("xxxxxx"), 2, "en")) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"judge": "opnai"}, "opnai.yaml does not exist; did you mean configs/judges/openai.yaml"),
        ({"judge": "embedded"}, "knows this project's own worlds"),
        ({"judge": "configs/judges/vllm.yaml", "topology": "knockout"}, "tournament.topology=knockout"),
        ({"judge": "vllm", "topolgy": "swiss"}, "did you mean tournament.topology?"),
        ({"judge": "vllm", "num_generations": 0}, "rollout.group_size=0"),
        ({"judge": "vllm", "max_calls": 0}, "judge.max_calls=0"),
        ({"judge": "vllm", "language": "fr"}, "choose en or zh"),
        ({"judge": "vllm", "rubric": " "}, "a rubric in words must say"),
        ({"judge": "vllm", "rubric": "nowhere.yaml"}, "nowhere.yaml does not exist"),
        ({"judge": "vllm", "rubric": "configs/quickstart.yaml"}, "configs/quickstart.yaml is not a rubric"),
        ({"judge": "openai"}, "set the environment variable OPENAI_API_KEY"),
        ({"judge": Number(), "rubric": "kind"}, "brings its own rubric"),
        ({"judge": Number}, "or make a Judge, whose compare is async"),
        ({"judge": None}, "judge=None: name a file of configs/judges"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_any_step(arguments, said, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        tournament_reward(**({"num_generations": 8} | arguments))
    assert "\n" not in str(refused.value)


def test_a_tool_conversation_is_shown_as_thoughts_calls_results_and_the_answer():
    native = [
        {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"word": "tau"})}}
    ]
    parsed = [{"type": "function", "function": {"name": "look_up", "arguments": {"word": "tau"}}}]
    for calls in (native, parsed):
        said = [
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls},
            {"role": "tool", "name": "look_up", "content": "a letter <|im_end|>"},
            *says("<think>\nso\n</think>\n\nA Greek letter."),
        ]
        one = read_trajectory(read_query(USER, "en"), said)
        assert one.valid and one.answer == "A Greek letter."
        assert [message["role"] for message in one.messages] == ["assistant", "tool", "assistant"]
        assert one.messages[0]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": {"word": "tau"}}
        assert one.messages[1]["content"] == "a letter < |im_end|>" and one.messages[2]["reasoning_content"] == "so"


def test_a_chat_before_the_answer_is_shown_whole():
    assert read_query(USER, "en").query == "Name a number."
    assert (
        read_query([{"role": "system", "content": "Be kind."}, *USER], "en").query
        == "system: Be kind.\n\nuser: Name a number."
    )


def test_texts_of_any_kind_are_read_and_never_raise():
    rng = random.Random(0)
    pieces = [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "{", '"name": "f"', "ok",
        "\ud800", "\n", "",
    ]  # fmt: skip
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 8)))
        one = read_trajectory(read_query("?", "en"), text)
        assert one.valid == bool(one.answer)


def by_length(text, number):
    """A judge over HTTP: of each agent a tenth of its answer's length on every dimension that is asked for."""
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
        path = tmp_path / "judge.yaml"
        path.write_text(
            f"name: llm\nmodel: m\nbase_url: {url}\napi_key_variable: null\nprice_in: 1000\nprice_out: 1000\n"
        )
        yield path


def test_an_llm_is_asked_over_http_by_a_rubric_in_words_and_paid_for_once(judge_file, tmp_path):
    def run(**more):
        logged = {}
        options = {"num_generations": 4, "rubric": "Is it long?", "store": tmp_path / "replies.sqlite"} | more
        function = tournament_reward(judge_file, **options)
        texts = ["a" * 40, "a" * 10, "a" * 30, "a" * 20] * 2
        found = rewards(
            function,
            ["p"] * 4 + ["q"] * 4,
            texts,
            log_metric=lambda name, value: logged.setdefault(name, []).append(value),
        )
        return found, logged

    found, logged = run()
    assert found == pytest.approx([1, 0, 2 / 3, 1 / 3] * 2)
    assert (
        logged["judge/failure_rate"] == [0.0] * sum(map(int, logged["judge/calls_per_group"]))
        and logged["judge/paid_calls"][0] > 0
    )
    again, logged = run()
    assert again == found and logged["judge/paid_calls"] == [0.0]
    assert run(rubric="configs/rubrics/writing_en.yaml")[0] == found
    with pytest.raises(RunStopped, match="max_calls"):
        run(rubric="Is it still long?", max_calls=3, run="bounded")


@pytest.fixture(scope="module")
def tiny_qwen2(tmp_path_factory):
    """A Qwen2 as small as those that TRL tests itself with, which ends a text after some six tokens, and a byte
    tokenizer with a ChatML template."""
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
    with torch.no_grad():  # the first dimension of the residual stream becomes a constant, towards which the end points
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        model.model.embed_tokens.weight[:, 0] = 1
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1.4
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_trains_a_tiny_model_with_trls_own_trainer(processes, tiny_qwen2, judge_file, tmp_path):
    prompts = [
        {"prompt": [{"role": "user", "content": f"Write a line about {thing}."}]}
        for thing in ("rain", "tea", "dusk", "ink")
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    script = ["-m", "torch.distributed.run", "--nproc_per_node", "2"] if processes == 2 else []
    words = {"model": tiny_qwen2, "prompts": "prompts.jsonl", "judge": str(judge_file), "rubric": "Is it long?"}
    words |= {"num-generations": 8, "steps": 2, "tokens": 12, "out": "out"}
    options = [f"--{name}={word}" for name, word in words.items()]
    command = [sys.executable, *script, str(ROOT / "examples" / "trl_tournament.py"), *options]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"\{'loss'.*?\}", done.stdout)
    assert len(steps) == 2 and all(
        "rewards/tournament/mean" in step and "'judge/failure_rate': '0'" in step for step in steps
    ), done.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.slow(seconds=10)
def test_what_the_examples_user_can_mend_is_one_line(tiny_qwen2, tmp_path):
    words = ("--model", str(tiny_qwen2), "--prompts", "prompts.jsonl", "--judge", "nobody")
    command = [sys.executable, str(ROOT / "examples" / "trl_tournament.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2 and "Traceback" not in done.stderr and "error: " in done.stderr and "nobody" in done.stderr
    ), done.stderr
