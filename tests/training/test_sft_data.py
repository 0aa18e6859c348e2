import json

import pytest

from arenarl.system.errors import UserError
from arenarl.training.sft_data import IGNORED, count_cut, in_training_order, tokenize, tokenize_trajectories
from arenarl.trajectory import assistant_text


def own_text(tokenizer, row):
    return tokenizer.decode([label for label in row["labels"] if label != IGNORED])


def turns_of(messages):
    return [assistant_text(message) for message in messages if message["role"] == "assistant"]


@pytest.fixture(params=[True, False], ids=["schemas", "no schemas"])
def tools(request, compact):
    return compact.tools if request.param else None


def test_loss_is_on_the_assistants_turns_and_their_ends_only(taught, tokenizer, tools):
    for one in taught[::3]:
        row = tokenize(tokenizer, one.trajectory.messages, tools, 4096)
        assert own_text(tokenizer, row) == "".join(f"{turn}<|im_end|>" for turn in turns_of(one.trajectory.messages))
        assert all(label in (token, IGNORED) for token, label in zip(row["input_ids"], row["labels"], strict=True))


def test_an_observation_that_quotes_a_turn_is_not_trained_on(tokenizer):
    messages = [
        {"role": "user", "content": "say <think>\nno\n</think>\n\n<answer>\nno\n</answer>"},
        {
            "role": "assistant",
            "reasoning_content": "a",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
        },
        {"role": "tool", "content": "<think>\nno\n</think>\n\n<answer>\nno\n</answer>"},
        {"role": "assistant", "reasoning_content": "b", "content": "<answer>\nyes\n</answer>"},
    ]
    own = own_text(tokenizer, tokenize(tokenizer, messages, None, 4096))
    assert "no" not in own and own == "".join(f"{turn}<|im_end|>" for turn in turns_of(messages))


@pytest.mark.parametrize("max_length", [50, 100, 150, 10_000])
def test_cut_trajectories_and_those_left_out_are_counted(sft_path, tokenizer, tmp_path, max_length, capsys):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, max_length)
    uncut = tokenize_trajectories(sft_path, tokenizer, None, 10_000)
    count_cut(dataset, max_length, tmp_path / "cut.json")
    lengths = [len(ids) for ids in uncut["input_ids"]]
    expected = {
        "trajectories": len(lengths),
        "cut": sum(n > max_length for n in lengths),
        "left_out": sum(all(label == IGNORED for label in labels[:max_length]) for labels in uncut["labels"]),
        "max_length": max_length,
        "longest": max(lengths),
        "tokens": sum(lengths),
    }
    assert len(in_training_order(dataset, 1, 4, seed=0)) == len(lengths) - expected["left_out"]
    assert json.loads((tmp_path / "cut.json").read_text()) == expected
    said = (
        f"{expected['cut']} cut at sft.max_length={max_length}, "
        f"{expected['left_out']} without a token to train on left out"
    )
    assert said in capsys.readouterr().out
    assert list(dataset["length"]) == lengths
    for row, whole in zip(dataset, uncut, strict=True):
        assert row["input_ids"] == whole["input_ids"][:max_length] and row["labels"] == whole["labels"][:max_length]


def test_no_argument_of_another_call_gets_in_as_null(sft_path, taught, tokenizer):
    """A table with a column a field would give every call the arguments of all others."""
    for row, one in zip(tokenize_trajectories(sft_path, tokenizer, None, 4096), taught, strict=True):
        text = tokenizer.decode(row["input_ids"])
        assert "null" not in text and "None" not in text
        for turn in turns_of(one.trajectory.messages):
            assert turn in text


def test_an_argument_that_is_null_stays_so(tokenizer):
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [call]},
    ]
    assert '{"x": null}' in own_text(tokenizer, tokenize(tokenizer, messages, None, 4096))


CALL, END = {"name": "f", "arguments": {"x": 1}}, {"role": "assistant", "content": "<answer>\nyes\n</answer>"}
AS_OURS = {
    "role": "assistant",
    "reasoning_content": "hm",
    "content": "",
    "tool_calls": [{"type": "function", "function": CALL}],
}


@pytest.mark.parametrize(
    "turn",
    [
        AS_OURS
        | {
            "tool_calls": [{"id": "1", "type": "function", "function": CALL | {"arguments": '{"x": 1}'}}],
            "content": None,
        },
        {
            "role": "assistant",
            "content": f"<think>\nhm\n</think>\n\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
            "tool_calls": None,
        },
        {"role": "assistant", "reasoning": "hm", "tool_calls": [{"function": CALL}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "<think>hm</think>"}],
            "tool_calls": [{"function": CALL}],
        },
    ],
    ids=["arguments in a string", "all in the text", "no content", "parts"],
)
def test_a_trajectory_of_ones_own_is_taught_in_the_form_of_rollouts_however_its_messages_are_written(
    turn, tokenizer, tmp_path
):
    def labels(turn, **fields):
        record = {"messages": [{"role": "user", "content": "q"}, turn, {"role": "tool", "content": "r"}, END]} | fields
        (tmp_path / "sft.jsonl").write_text(json.dumps(record) + "\n\n", encoding="utf-8-sig")
        return list(tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, [], 4096)["labels"])

    assert labels(turn) == labels(AS_OURS, query_id="1", tools=[], valid=True, meta={})


@pytest.mark.parametrize("record", [
    [], {}, {"messages": []}, {"messages": [{"from": "human", "value": "q"}]},
    {"messages": [{"role": "tool", "content": {"x": 1}}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]},
    {"messages": [{"role": "system", "content": "s"}]},
    *({"messages": [{"role": "user", "content": "q"}], "tools": tools}
      for tools in ("{", '"f"', '["f"]', ["f"], [{"name": "f"}], {"f": {}}, 7)),
])  # fmt: skip
def test_a_record_that_is_no_trajectory_is_one_line_with_its_place(record, tokenizer, tmp_path):
    (tmp_path / "sft.jsonl").write_text(f"\n{json.dumps(record)}\n")
    with pytest.raises(UserError, match=r"sft\.jsonl, line 2 is not a valid trajectory: .*; data/README\.md describes"):
        tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, None, 4096)


@pytest.mark.parametrize("tools", [[], None, "", "null", "[]"])
def test_tools_that_a_trajectory_brings_are_shown_also_as_json_in_a_string(tokenizer, compact, tmp_path, tools):
    def prompt(tools):
        record = {"messages": [{"role": "user", "content": "q"}, END], "tools": tools}
        (tmp_path / "sft.jsonl").write_text(json.dumps(record))
        return tokenizer.decode(
            tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, compact.tools, 9999)["input_ids"][0]
        )

    own = [{"type": "function", "function": {"name": "brought", "parameters": {"type": "object", "properties": {}}}}]
    assert prompt(own) == prompt(json.dumps(own)) and "brought" in prompt(own)
    assert "brought" not in prompt(tools) and compact.tools[0]["function"]["name"] in prompt(tools)


@pytest.mark.parametrize("token", ["<|im_end|>", "</think>"])
def test_a_turn_that_spells_a_control_token_is_taught_whole_and_ends_once(token, tokenizer):
    said = {"role": "assistant", "reasoning_content": f"a {token} b", "content": f"<answer>\nc {token} d\n</answer>"}
    own = own_text(tokenizer, tokenize(tokenizer, [{"role": "user", "content": "q"}, said], None, 4096))
    assert own.count("<|im_end|>") == own.count("</think>") == 1 and own.endswith("</answer><|im_end|>")
    assert own.replace("< ", "<") == f"{assistant_text(said)}<|im_end|>"


def test_a_template_that_marks_no_assistant_turn_is_refused(sft_path, policy_path):
    from arenarl.rollout.policy import load_tokenizer

    tokenizer = load_tokenizer(policy_path)
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- generation %}", "").replace(
        "{%- endgeneration %}", ""
    )
    with pytest.raises(UserError, match="no assistant token to train on"):
        tokenize_trajectories(sft_path, tokenizer, None, 4096)


def test_a_length_that_cuts_all_assistant_tokens_is_refused(sft_path, tokenizer):
    with pytest.raises(UserError, match=r"sft\.max_length"):
        tokenize_trajectories(sft_path, tokenizer, None, 5)


def test_the_training_order_holds_every_pass_whole_and_differs_between_passes(sft_path, tokenizer):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, 4096)
    ids = [tuple(row) for row in dataset["input_ids"]]
    ordered = [tuple(row) for row in in_training_order(dataset, 2.5, 4, seed=0)["input_ids"]]
    first, second, half = ordered[: len(ids)], ordered[len(ids) : 2 * len(ids)], ordered[2 * len(ids) :]
    assert sorted(first) == sorted(second) == sorted(ids) and first != second and len(half) == len(ids) // 2
    assert ordered == [tuple(row) for row in in_training_order(dataset, 2.5, 4, seed=0)["input_ids"]]
    assert ordered != [tuple(row) for row in in_training_order(dataset, 2.5, 4, seed=1)["input_ids"]]


def test_the_training_order_is_the_one_that_the_trainer_would_draw(sft_path, tokenizer, policy_path, tmp_path):
    """Two epochs of Trainer's own sampling by length see the rows in the same order."""
    from trl import SFTConfig, SFTTrainer

    class Seen(SFTTrainer):
        batches = []

        def training_step(self, model, inputs, *rest):
            self.batches += [row[row != self.processing_class.pad_token_id].tolist() for row in inputs["input_ids"]]
            return super().training_step(model, inputs, *rest)

    dataset = tokenize_trajectories(sft_path, tokenizer, None, 4096).select(range(64))
    arguments = {"use_cpu": True, "report_to": [], "save_strategy": "no", "per_device_train_batch_size": 4}
    arguments |= {"seed": 3, "bf16": False}
    trainer = Seen(
        model=policy_path,
        args=SFTConfig(str(tmp_path), num_train_epochs=2, train_sampling_strategy="group_by_length", **arguments),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    trainer.train()
    assert Seen.batches == [list(row) for row in in_training_order(dataset, 2, 4, seed=3)["input_ids"]]
