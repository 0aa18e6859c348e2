import json

import pytest

from arenarl.rollout.policy import Limit, load_tokenizer
from arenarl.system.errors import UserError
from arenarl.training.sft_data import (
    IGNORED,
    check_lengths,
    count_cut,
    in_training_order,
    tokenize,
    tokenize_trajectories,
)
from arenarl.trajectory import assistant_text


def own_text(tokenizer, row):
    return tokenizer.decode([label for label in row["labels"] if label != IGNORED])


def turn_of(content, reasoning, calls=None):
    turn = {"role": "assistant", "reasoning_content": reasoning, "content": content}
    return turn | ({"tool_calls": calls} if calls else {})


def turns_of(messages):
    return [assistant_text(message) for message in messages if message["role"] == "assistant"]


@pytest.fixture(params=[True, False], ids=["schemas", "no schemas"])
def tools(request, compact):
    return compact.tools if request.param else None


def test_labels_cover_assistant_turns_and_their_ends_only(taught, tokenizer, tools):
    for messages in [example.trajectory.messages for example in taught[::3]]:
        row = tokenize(tokenizer, messages, tools, 4096)
        assert own_text(tokenizer, row) == "".join(f"{turn}<|im_end|>" for turn in turns_of(messages))
        assert all(label in (token, IGNORED) for token, label in zip(row["input_ids"], row["labels"], strict=True))


def test_an_observation_that_quotes_a_turn_has_no_labels(tokenizer):
    call, quote = {"name": "f", "arguments": {}}, "<think>\nno\n</think>\n\n<answer>\nno\n</answer>"
    messages = [
        {"role": "user", "content": f"say {quote}"},
        turn_of("", "a", [{"type": "function", "function": call}]),
        {"role": "tool", "content": quote},
        turn_of("<answer>\nyes\n</answer>", "b"),
    ]
    own = own_text(tokenizer, tokenize(tokenizer, messages, None, 4096))
    assert "no" not in own and own == "".join(f"{turn}<|im_end|>" for turn in turns_of(messages))


@pytest.mark.parametrize("max_length", [50, 100, 150, 10_000])
def test_cut_and_omitted_trajectories_are_counted(sft_path, tokenizer, tmp_path, max_length, capsys):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, max_length)
    uncut = tokenize_trajectories(sft_path, tokenizer, None, 10_000)
    count_cut(dataset, max_length, tmp_path / "cut.json")
    lengths = [len(ids) for ids in uncut["input_ids"]]
    cut = sum(length > max_length for length in lengths)
    left_out = sum(all(label == IGNORED for label in labels[:max_length]) for labels in uncut["labels"])
    counts = {"trajectories": len(lengths), "cut": cut, "left_out": left_out, "max_length": max_length}
    expected = counts | {"longest": max(lengths), "tokens": sum(lengths)}
    assert json.loads((tmp_path / "cut.json").read_text()) == expected
    words = f"{cut} cut at sft.max_length={max_length}, {left_out} without a token to train on left out"
    assert words in capsys.readouterr().out
    assert len(in_training_order(dataset, 1, 4, seed=0)) == len(lengths) - left_out
    assert list(dataset["length"]) == lengths
    for row, whole in zip(dataset, uncut, strict=True):
        assert row["input_ids"] == whole["input_ids"][:max_length] and row["labels"] == whole["labels"][:max_length]


def test_calls_do_not_get_other_calls_arguments_as_null_and_keep_their_own_null(sft_path, taught, tokenizer):
    """A table with one column per field would add the arguments of all other calls."""
    for row, example in zip(tokenize_trajectories(sft_path, tokenizer, None, 4096), taught, strict=True):
        text = tokenizer.decode(row["input_ids"])
        assert "null" not in text and "None" not in text
        assert all(turn in text for turn in turns_of(example.trajectory.messages))
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
    messages = [{"role": "user", "content": "q"}, turn_of("", "", [call])]
    assert '{"x": null}' in own_text(tokenizer, tokenize(tokenizer, messages, None, 4096))


CALL, END = {"name": "f", "arguments": {"x": 1}}, {"role": "assistant", "content": "<answer>\nyes\n</answer>"}
OURS = turn_of("", "hm", [{"type": "function", "function": CALL}])
IN_TEXT = f"<think>\nhm\n</think>\n\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"


@pytest.mark.parametrize("turn", [
    turn_of(None, "hm", [{"id": "1", "type": "function", "function": CALL | {"arguments": '{"x": 1}'}}]),
    {"role": "assistant", "content": IN_TEXT, "tool_calls": None},
    {"role": "assistant", "reasoning": "hm", "tool_calls": [{"function": CALL}]},
    {"role": "assistant", "content": [{"type": "text", "text": "<think>hm</think>"}],
     "tool_calls": [{"function": CALL}]},
], ids=["arguments in a string", "all in the text", "no content", "parts"])  # fmt: skip
def test_all_message_forms_give_the_labels_of_rollouts(turn, tokenizer, tmp_path):
    def labels(turn, **fields):
        record = {"messages": [{"role": "user", "content": "q"}, turn, {"role": "tool", "content": "r"}, END]} | fields
        (tmp_path / "sft.jsonl").write_text(json.dumps(record) + "\n\n", encoding="utf-8-sig")
        return list(tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, [], 4096)["labels"])

    assert labels(turn) == labels(OURS, query_id="1", tools=[], valid=True, meta={})


@pytest.mark.parametrize("record", [
    [], {}, {"messages": []}, {"messages": [{"from": "human", "value": "q"}]},
    {"messages": [{"role": "tool", "content": {"x": 1}}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]},
    {"messages": [{"role": "system", "content": "s"}]},
    *({"messages": [{"role": "user", "content": "q"}], "tools": tools}
      for tools in ("{", '"f"', '["f"]', ["f"], [{"name": "f"}], {"f": {}}, 7)),
])  # fmt: skip
def test_an_invalid_record_is_refused_with_its_line(record, tokenizer, tmp_path):
    (tmp_path / "sft.jsonl").write_text(f"\n{json.dumps(record)}\n")
    with pytest.raises(UserError, match=r"sft\.jsonl, line 2 is not a valid trajectory: .*; data/README\.md describes"):
        tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, None, 4096)


@pytest.mark.parametrize("tools", [[], None, "", "null", "[]"])
def test_a_trajectory_s_own_tools_replace_the_environment_s_also_as_a_json_string(tokenizer, compact, tmp_path, tools):
    def prompt(tools):
        record = {"messages": [{"role": "user", "content": "q"}, END], "tools": tools}
        (tmp_path / "sft.jsonl").write_text(json.dumps(record))
        dataset = tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, compact.tools, 9999)
        return tokenizer.decode(dataset["input_ids"][0])

    own = [{"type": "function", "function": {"name": "brought", "parameters": {"type": "object", "properties": {}}}}]
    assert prompt(own) == prompt(json.dumps(own)) and "brought" in prompt(own)
    assert "brought" not in prompt(tools) and compact.tools[0]["function"]["name"] in prompt(tools)


@pytest.mark.parametrize("token", ["<|im_end|>", "</think>"])
def test_a_turn_that_spells_a_control_token_has_one_end(token, tokenizer):
    turn = turn_of(f"<answer>\nc {token} d\n</answer>", f"a {token} b")
    own = own_text(tokenizer, tokenize(tokenizer, [{"role": "user", "content": "q"}, turn], None, 4096))
    assert own.count("<|im_end|>") == own.count("</think>") == 1 and own.endswith("</answer><|im_end|>")
    assert own.replace("< ", "<") == f"{assistant_text(turn)}<|im_end|>"


def test_without_an_assistant_token_to_train_on_data_are_refused(sft_path, policy_path, tokenizer):
    lengths = tokenize_trajectories(sft_path, tokenizer, None, 4096)["length"]
    sizes = f"have {min(lengths)} to {max(lengths)} tokens; raise it"
    with pytest.raises(UserError, match=f"sft.max_length=5 cuts them off, as trajectories {sizes}"):
        tokenize_trajectories(sft_path, tokenizer, None, 5)
    unmarked = load_tokenizer(policy_path)
    for mark in ("{%- generation %}", "{%- endgeneration %}"):
        unmarked.chat_template = unmarked.chat_template.replace(mark, "")
    for max_length in (4096, min(lengths)):  # longer ones are cut, but the cut is not the cause
        with pytest.raises(UserError, match="no assistant token to train on: the chat template marks none"):
            tokenize_trajectories(sft_path, unmarked, None, max_length)


def test_lengths_that_cannot_be_trained_are_refused_and_cut_trajectories_are_reported(sft_path, tokenizer, capsys):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, 10_000)
    lengths = sorted(dataset["length"])
    count, limit = len(lengths), Limit(10_000, "that the model reads")
    check_lengths(dataset, lengths[-1], 512, limit)
    check_lengths(dataset, lengths[-1], 512, None)
    assert not capsys.readouterr().out
    most = lengths[count * 9 // 10]
    check_lengths(dataset, most, 512, limit)
    cut = sum(length > most for length in lengths)
    assert f"warning: sft.max_length={most} cuts {cut} of {count} trajectories" in capsys.readouterr().out
    half = lengths[count // 2 - 2]
    for max_length, max_tokens, positions, problem in [
        (half, 512, 10_000, f"sft.max_length={half} cuts .* of {count} trajectories, .* raise it to {lengths[-1]}"),
        (half, 512, half, f"sft.max_length={half} cuts .*; leave out long trajectories: the longest has"),
        (10_000, 512, lengths[-1] - 1, f"of up to {lengths[-1]} tokens are more than .*; set sft.max_length to"),
        (10_000, 9_995, 10_000, r"a prompt of \d+ tokens and rollout.max_tokens=9995 are more than the 10,000 that"),
    ]:
        with pytest.raises(UserError, match=problem):
            check_lengths(dataset, max_length, max_tokens, Limit(positions, "that the model reads"))


def test_the_training_order_has_complete_passes_in_different_orders(sft_path, tokenizer):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, 4096)
    ids = [tuple(row) for row in dataset["input_ids"]]
    ordered, again, other = (
        [tuple(row) for row in in_training_order(dataset, 2.5, 4, seed=seed)["input_ids"]] for seed in (0, 0, 1)
    )
    first, second, half = ordered[: len(ids)], ordered[len(ids) : 2 * len(ids)], ordered[2 * len(ids) :]
    assert sorted(first) == sorted(second) == sorted(ids) and first != second and len(half) == len(ids) // 2
    assert ordered == again != other
    with pytest.raises(UserError, match=f"sft.epochs=0.001 times {len(ids)} trajectories is less than one; raise"):
        in_training_order(dataset, 0.001, 4, seed=0)


def test_the_training_order_equals_the_trainer_s(sft_path, tokenizer, policy_path, tmp_path):
    """Two epochs of Trainer's own sampling by length have the same order of rows."""
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


def test_stored_tokens_are_mapped_and_made_again_only_if_something_else_decides_them(
    sft_path, tokenizer, compact, tmp_path, monkeypatch
):
    data, store, template = tmp_path / "sft.jsonl", tmp_path / "tokens", tokenizer.chat_template
    data.write_bytes(b"".join(sft_path.read_bytes().splitlines(keepends=True)[:4]))
    calls = []
    real = tokenize
    monkeypatch.setattr("arenarl.training.sft_data.tokenize", lambda *args: calls.append(1) or real(*args))

    def is_made_again(max_length=4096, tools=None, system=None):
        calls.clear()
        stored = tokenize_trajectories(data, tokenizer, tools, max_length, system, store=store)
        is_made = bool(calls)
        memory = tokenize_trajectories(data, tokenizer, tools, max_length, system)
        assert stored.features == memory.features and list(stored) == list(memory)
        assert stored.cache_files and stored.data.nbytes <= 14 * sum(map(len, stored["input_ids"]))
        return is_made

    assert is_made_again() and not is_made_again()
    for change in ({"max_length": 60}, {"tools": compact.tools}, {"system": "Another."}):
        assert is_made_again(**change) and not is_made_again(**change)
    monkeypatch.setattr(tokenizer, "chat_template", template + "\n")
    assert is_made_again() and not is_made_again()
    data.write_bytes(b"".join(data.read_bytes().splitlines(keepends=True)[:-1]))
    assert is_made_again() and not is_made_again()
    for path in sorted(store.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 + 1 :])
        assert is_made_again() and not is_made_again()
        path.unlink()
        assert is_made_again() and not is_made_again()
