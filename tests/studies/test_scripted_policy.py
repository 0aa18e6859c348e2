"""What the script writes over a policy's turns."""

import asyncio

from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator, TurnRequest
from arenarl.rollout.policy import load_model, load_tokenizer
from arenarl.studies.scripted_policy import Script, build_policy
from arenarl.trajectory import assistant_message, parse_turn


def test_a_script_keeps_a_turns_length_and_makes_it_a_tool_call_or_an_answer(tokenizer):
    async def generate(request):
        return GeneratedTurn([(request.seed * 31 + k) % len(tokenizer) for k in range(70)])  # control tokens among them

    script = Script(tokenizer, generate, turns=3)
    prompt = [5, *script.header]
    turns = [asyncio.run(script(TurnRequest(prompt, 70, 1.0, seed))).token_ids for seed in range(40)]
    read = [parse_turn(assistant_message(tokenizer.decode(turn[:-1]))) for turn in turns]
    assert {len(turn) for turn in turns} == {70} and {turn[-1] for turn in turns} == {tokenizer.eos_token_id}
    assert len({turn.thought for turn in read}) == 40
    assert 10 < sum(turn.answer is None and turn.tool_calls[0].name == "universal_search" for turn in read) < 38
    assert all(turn.answer or turn.tool_calls for turn in read)
    last = [asyncio.run(script(TurnRequest(prompt * 3, 70, 1.0, seed))).token_ids for seed in range(40)]
    assert all(parse_turn(assistant_message(tokenizer.decode(turn[:-1]))).answer for turn in last)


def test_a_policy_of_the_first_layers_never_ends_a_turn(taught, tmp_path):
    config = Config(environment=EnvironmentConfig(results="compact"))
    folder, parameters = build_policy(config, "tiny", [one.query for one in taught[:8]], tmp_path, layers=1)
    model, tokenizer = load_model(folder, "float32"), load_tokenizer(folder)
    assert model.config.num_hidden_layers == len(model.model.layers) == 1 < config.policy.scratch.num_layers
    assert model.num_parameters() == parameters
    # the end of a turn stands in it
    prompt = tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    turns = [
        asyncio.run(TransformersGenerator(model, tokenizer, 4).generate(TurnRequest(prompt, 200, 1.0, seed))).token_ids
        for seed in range(4)
    ]
    assert all(len(turn) == 200 and tokenizer.eos_token_id not in turn for turn in turns)
