"""Each stage's memory with every back end, misfits, and hours by hand."""

import json

import pytest

from arenarl.config.load import load_config
from arenarl.plan.memory import ENGINE, SHAPES, Training, generation
from arenarl.plan.stage import RESERVE, Hardware, Stage, decoding_bytes, forward_flops, training_flops
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT

QWEN3_8B = SHAPES["Qwen/Qwen3-8B"]
BESIDE = ["rollout.vllm_sleep=false", "rollout.vllm_memory=0.3"]  # the engine keeps its share


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)  # where the configs' DeepSpeed JSONs are


def stage(name, *overrides, path="configs/travel/rl_arenarl_qwen3_8b.yaml", gpus=8, **gpu):
    return Stage(load_config(path, [*BESIDE, *overrides]), name, gpus, Hardware(**gpu))


def test_training_follows_the_config(tmp_path):
    assert stage("rl").training == Training(QWEN3_8B, 16_384, gpus=8, zero=3, reference=True)
    assert stage("sft", "sft.max_length=100", "sft.batch_size=3").training == Training(QWEN3_8B, 300, gpus=8, zero=3)
    changes = ["rl.deepspeed=null", "rl.beta=0", "policy.lora_rank=16", "rl.micro_batch_size=2"]
    changes.append("policy.gradient_checkpointing=false")
    assert stage("rl", *changes, gpus=1).training == Training(QWEN3_8B, 32_768, lora_rank=16, checkpointing=False)
    (tmp_path / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert stage("rl", f"rl.deepspeed={tmp_path}/zero2.json").training.zero == 2
    with pytest.raises(UserError, match="sft.deepspeed=nowhere.json does not exist"):
        _ = stage("sft", "sft.deepspeed=nowhere.json").training


def test_an_evaluation_is_planned_for_the_largest_checkpoint_that_exists():
    """Else a laptop's config says that checkpoints of Qwen3-32B fit, as its own policy does."""
    named = "evaluate.checkpoints={a: Qwen/Qwen3-32B, b: Qwen/Qwen3-0.6B-Base, c: runs/nowhere/rl}"
    one = stage("evaluate", named, path="configs/quickstart.yaml", gpus=1)
    assert one.model == "Qwen/Qwen3-32B" and one.shape.layers == 64 and one.misfits
    assert stage("rl", named, path="configs/quickstart.yaml").model is None
    unknown = "evaluate.checkpoints={c: runs/nowhere/rl}"
    assert stage("evaluate", unknown).model == stage("evaluate").model == "Qwen/Qwen3-8B-Base"


@pytest.mark.parametrize(("override", "share"), [
    ("rollout.vllm_memory=0.3", 0.3), ("rollout.vllm_memory=0.5", 0.5), ("rollout.backend=vllm_server", 0.0),
])  # fmt: skip
def test_colocated_vllm_adds_its_share_to_the_trainer_and_a_server_adds_nothing(override, share):
    one = stage("rl", override)
    assert one.phases == {"training": RESERVE | {"vLLM's share": share * 80e9} | one.training.updating()}


def test_sleeping_vllm_alternates_with_the_update():
    one = stage("rl", "rollout.vllm_sleep=true", "rollout.vllm_memory=0.7")
    embedding = {"parameters gathered while in use": 2 * 151_936 * 4096}
    assert one.phases == {
        "generating": RESERVE | {"vLLM's share": 56e9} | one.training.states() | embedding,
        "training": RESERVE | {"vLLM's share": ENGINE} | one.training.updating(),
    }
    assert one.misfits == [] and stage("rl", "rollout.vllm_memory=0.7").misfits
    assert "vLLM's share" in stage("evaluate", "rollout.vllm_sleep=true").phases["generating"]


def test_evaluation_decodes_every_attempt_with_the_whole_gpu_in_the_shape_that_rl_starts_from():
    assert stage("evaluate").phases == {"generating": RESERVE | {"vLLM's share": 68e9}}
    assert stage("evaluate", "rollout.backend=vllm_server").phases == {}
    assert stage("evaluate", path="configs/travel/closed_models.yaml").phases == {}  # all behind APIs
    # 250 test queries on 8 GPUs
    alone = RESERVE | {"parameters": 2 * QWEN3_8B.parameters} | generation(QWEN3_8B, 32, 16_384)
    assert stage("evaluate", "rollout.backend=transformers").phases == {"generating": alone}
    shapes = [stage(name, "rl.init=Qwen/Qwen3-4B-Base").shape for name in ("sft", "rl", "evaluate")]
    assert shapes == [QWEN3_8B, SHAPES["Qwen/Qwen3-4B"], SHAPES["Qwen/Qwen3-4B"]]
    one = stage("evaluate", memory_gb=160.0)
    assert one.trajectories == 250 * 2 * 2  # test queries, decodings, policies
    rows = 63  # both decodings together, on each of 8 GPUs
    assert one.hours == pytest.approx(1000 * decoding_bytes(QWEN3_8B, 16_384, rows) / (4e12 * 0.5) / 8 / 3600)
    assert stage("evaluate", path="configs/travel/closed_models.yaml").hours == 0


@pytest.mark.parametrize(("overrides", "rows"), [
    ([], 16), (["rl.eval_queries=400"], 50), (["rollout.batch_size=5"], 5),
    (["rl.eval_queries=400", "rollout.batch_size=20"], 20),
])  # fmt: skip
def test_the_trainers_model_alternates_between_generating_and_training(overrides, rows):
    one = stage("rl", "rollout.backend=transformers", *overrides)  # 8 groups of 16 and 50 queries on 8 GPUs
    nothing = RESERVE | {"vLLM's share": 0.0}
    assert one.phases == {
        "generating": RESERVE | one.training.generating(rows, 16_384),
        "training": nothing | one.training.updating(),
    }


ROOM = "vLLM has {} GB, and its weights with a cache of {} tokens take {}"
UNEVEN = "rollout.vllm_tensor_parallel=3 does not divide 8 processes into engines of equal size"
SPLIT = "rl.groups=8 cannot be shared by 5 processes without splitting a group"
NO_ROOM = "rollout.max_tokens=32768 leaves a prompt no room in the 32,768 tokens that the model reads"


@pytest.mark.parametrize(("name", "overrides", "options", "misfits"), [
    ("rl", [], {}, []), ("rl", ["rollout.vllm_memory=0.6"], {}, ["training takes 84.4 of 80.0 GB"]),
    # 81.9 of weights, gradients, moments and reference, 38.7 of cache, 38.7 of turns read again, 2 reserved
    ("rl", ["rollout.backend=transformers", "rl.deepspeed=null"], {},
     ["generating takes 163.6 of 80.0 GB", "training takes 95.8 of 80.0 GB"]),
    # vLLM needs room for a trajectory and its prompt, up to the model's positions
    ("rl", ["rollout.vllm_memory=0.25"], {}, [ROOM.format("20.0", "20,480", "20.4")]),
    ("rl", ["rollout.vllm_memory=0.26"], {}, []),
    ("rl", ["rollout.max_tokens=30000", "rollout.vllm_memory=0.25"], {}, [ROOM.format("20.0", "32,768", "22.2")]),
    ("rl", ["rollout.max_tokens=30000", "rollout.vllm_memory=0.25", "policy.model=Qwen/Qwen3-8B"], {},
     [ROOM.format("20.0", "34,096", "22.4")]),
    ("evaluate", [], {"memory_gb": 20.0}, [ROOM.format("17.0", "20,480", "20.4")]),
    # an engine on two GPUs splits weights and cache
    ("rl", ["rollout.vllm_memory=0.15", "rollout.vllm_tensor_parallel=2"], {}, []),
    ("rl", ["rollout.vllm_memory=0.12", "rollout.vllm_tensor_parallel=2"], {}, [ROOM.format("9.6", "20,480", "10.7")]),
    *((name, ["rollout.vllm_tensor_parallel=3"], {}, [UNEVEN]) for name in ("rl", "evaluate")),
    ("sft", ["rollout.vllm_tensor_parallel=3"], {}, []),
    ("rl", [], {"gpus": 5}, [SPLIT]), ("sft", [], {"gpus": 5}, []), ("evaluate", [], {"gpus": 5}, []),
])  # fmt: skip
def test_misfits_of_a_stage(name, overrides, options, misfits):
    assert stage(name, *overrides, **options).misfits == misfits


def test_a_budget_without_room_for_a_prompt_is_a_misfit_of_stages_with_rollouts():
    for name, backend in (("rl", "vllm"), ("evaluate", "vllm_server"), ("sft", "vllm"), ("rl", "transformers")):
        one = stage(name, "rollout.max_tokens=32768", f"rollout.backend={backend}")
        assert (NO_ROOM in one.misfits) == (name != "sft")


def test_a_gpu_decodes_a_steps_trajectories_or_what_the_cache_of_its_engine_holds():
    assert stage("rl", memory_gb=160.0).at_once == 16
    assert stage("rl").at_once == 44_884 * 2 // 16_384 == 5
    assert stage("rl", "rollout.vllm_memory=0.1").at_once == 1  # it would not start
    assert stage("rl", "rollout.backend=transformers", "rollout.batch_size=7").at_once == 7
    one, two = stage("rl"), stage("rl", "rollout.vllm_tensor_parallel=2")
    assert one.phases == two.phases  # vLLM's share per GPU is unchanged
    assert (one.at_once, two.at_once) == (5, (24 - 1 - 16.38147072 / 2) * 1e9 * 2 // 147_456 * 2 // 16_384)


def test_flops_worked_by_hand():
    matrices = QWEN3_8B.parameters - 151_936 * 4096
    assert forward_flops(QWEN3_8B, 1000) == 1000 * (2 * matrices + 2 * 36 * 4096 * 1000)
    # 6 + 2, in twos
    forward = forward_flops(QWEN3_8B, 1000)
    for override, passes in (("seed=0", 4), ("policy.gradient_checkpointing=false", 3), ("policy.lora_rank=8", 3)):
        assert training_flops(stage("rl", override).config.policy, QWEN3_8B, 1000) == passes * forward
    assert decoding_bytes(QWEN3_8B, 1000, 16) == 1000 * (2 * QWEN3_8B.parameters / 16 + 147_456 * 500)


def test_hours_are_flops_and_bytes_over_the_gpus_speeds():
    gpu = {"memory_gb": 160.0, "tflops": 100.0, "bandwidth_tb_s": 4.0, "utilisation": 0.4}
    gpu |= {"bandwidth_share": 0.5, "layer_ms": 0.0}
    tokens, trajectories = 16_384, 200 * 8 * 16
    flops = (4 + 1 + 1) * forward_flops(QWEN3_8B, tokens)  # training, reference, and old logprobs beside vLLM's
    seconds = flops / 40e12 + decoding_bytes(QWEN3_8B, tokens, 16) / 2e12  # 8 groups of 16 on 8 GPUs
    assert stage("rl", **gpu).hours == pytest.approx(trajectories * seconds / 8 / 3600)
    assert stage("rl", "rl.beta=0", **gpu).hours < stage("rl", **gpu).hours
    assert stage("rl", **gpu).hours == pytest.approx(2 * stage("rl", "rl.steps=100", **gpu).hours)
    # as many rollouts, and old logprobs
    shared = ["rl.updates_per_rollout=4", "rl.steps=800", "rl.save_steps=80", "rl.eval_steps=80"]
    assert stage("rl", *shared, **gpu).hours == pytest.approx(trajectories * seconds / 8 / 3600)
    trainers_own = "rollout.backend=transformers"  # whose probabilities are the trainer's
    assert stage("rl", trainers_own, *shared, **gpu).hours == pytest.approx(trajectories * seconds / 8 / 3600)
    seconds -= forward_flops(QWEN3_8B, tokens) / 40e12
    assert stage("rl", trainers_own, **gpu).hours == pytest.approx(trajectories * seconds / 8 / 3600)
    slow = gpu | {"layer_ms": 10.0}  # 36 layers take longer to start than to read
    seconds += tokens * 36 * 0.01 / 16 - decoding_bytes(QWEN3_8B, tokens, 16) / 2e12
    assert stage("rl", trainers_own, **slow).hours == pytest.approx(trajectories * seconds / 8 / 3600)
    assert stage("rl", **slow).hours == stage("rl", **gpu).hours
    sft = stage("sft", path="configs/travel/sft_qwen3_8b.yaml", gpus=32, **gpu)
    assert sft.hours == pytest.approx(2600 * 3 * 4 * forward_flops(QWEN3_8B, tokens) / 40e12 / 32 / 3600)


def test_one_step_ahead_an_rl_run_takes_the_longer_of_generation_and_training():
    """The first rollout and the last updates have nothing beside them: 200 times the longer part, once the shorter."""
    gpu = {"memory_gb": 160.0, "tflops": 100.0, "bandwidth_tb_s": 4.0, "utilisation": 0.4, "bandwidth_share": 0.5}
    training = 6 * forward_flops(QWEN3_8B, 16_384) / 40e12
    for speed in (4.0, 0.4):  # TB/s: generation is the shorter part, then the longer
        gpu["bandwidth_tb_s"] = speed
        decoding = decoding_bytes(QWEN3_8B, 16_384, 128 // 8) / (speed * 0.5e12)
        assert (decoding > training) == (speed < 1)
        seconds = max(training, decoding) + min(training, decoding) / 200
        ahead = stage("rl", "rollout.backend=vllm_server", "rl.steps_ahead=1", **gpu)
        assert ahead.hours == pytest.approx(200 * 128 * seconds / 8 / 3600)
        in_turn = stage("rl", "rollout.backend=vllm_server", **gpu)
        assert in_turn.hours == pytest.approx(200 * 128 * (training + decoding) / 8 / 3600)
    own, further = (stage("rl", "rollout.backend=transformers", f"rl.steps_ahead={steps}", **gpu) for steps in (0, 1))
    assert further.flops - own.flops == forward_flops(QWEN3_8B, 16_384)  # for the correction
    assert stage("evaluate", "rollout.backend=vllm_server", "rl.steps_ahead=1").hours == (
        stage("evaluate", "rollout.backend=vllm_server").hours
    )
