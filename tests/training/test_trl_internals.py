"""TRL's private parts: patched code gives TRL's values, gradients and metrics, and an upgrade that changes an
overridden part fails here with instructions."""

import hashlib
import inspect
from contextlib import nullcontext
from types import MethodType, SimpleNamespace

import pytest
import tiny_models
import torch
import transformers
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Trainer
from trl import DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob
from trl.trainer import utils

from arenarl.rollout.policy import load_tokenizer, lora_config
from arenarl.system.errors import UserError
from arenarl.training import sft_internals, trl_internals
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.training.sft_internals import HeadTrial, RightPaddedTrainer, prepare_training
from arenarl.training.trl_internals import OwnTokensTrainer, Rows

KEYS = ("loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens")
PRIVATE = {  # sha256 of the sources that trl_internals and sft_internals override or call
    GRPOTrainer._prepare_inputs: "f824e7fb0714",
    GRPOTrainer._generate: "2a27fdf8f5e6",
    GRPOTrainer._calculate_rewards: "736ae29b0838",
    GRPOTrainer._generate_and_score_completions: "1fa48922792d",
    GRPOTrainer._compute_loss: "80295546bbdb",
    GRPOTrainer._get_per_token_logps_and_entropies: "ea73c3909275",
    SFTTrainer.compute_loss: "ca448211ff65",
    DPOTrainer._prepare_dataset: "35e349e8e826",
    DPOTrainer.compute_loss: "c453890e84be",
    Trainer._save_checkpoint: "a9111e30faa9",
    Trainer._load_from_checkpoint: "4711d0506786",
    utils.add_fused_lm_head: "422d009f04b6",
    chunked_logprob._use_triton: "f0510984e05a",
}


@pytest.mark.parametrize("part", PRIVATE, ids=lambda part: part.__qualname__)
def test_trl_s_overridden_parts_are_unchanged(part):
    digest = hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:12]
    words = "has changed: read it, adapt arenarl/training/trl_internals.py, then write"
    assert digest == PRIVATE[part], f"{part.__qualname__} {words} {digest} here"


def test_another_version_of_trl_is_refused(monkeypatch):
    monkeypatch.setattr(sft_internals, "version", lambda library: "1.17.0")
    with pytest.raises(UserError, match="was written for TRL 1.16, and 1.17.0 is installed"):
        sft_internals.prepare()


VALUES = {"atol": 2e-5, "rtol": 1e-4}  # tolerances for sums in another order


@pytest.fixture(scope="module")
def trainer(policy_path, tmp_path_factory):
    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trainer")), use_cpu=True, bf16=False, report_to=[], loss_type="grpo",
        beta=0.1, temperature=0.8, num_generations=2, per_device_train_batch_size=8,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    return OwnTokensTrainer(
        model=str(policy_path),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=load_tokenizer(str(policy_path)),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )


def batch_of(lengths, masks):
    """TRL's tensors for prompts and completions of these lengths; `masks` are 1 on the policy's own tokens."""
    generator = torch.Generator().manual_seed(sum(map(sum, lengths)))
    longest_prompt, longest = (max(lengths_of) for lengths_of in zip(*lengths, strict=True))

    def tokens(count):
        return torch.randint(10, 600, (count,), generator=generator).tolist()

    prompts, completions = [tokens(prompt) for prompt, _ in lengths], [tokens(completion) for _, completion in lengths]
    return {
        "prompt_ids": torch.tensor([[0] * (longest_prompt - len(ids)) + ids for ids in prompts]),
        "prompt_mask": torch.tensor([[0] * (longest_prompt - len(ids)) + [1] * len(ids) for ids in prompts]),
        "completion_ids": torch.tensor([ids + [0] * (longest - len(ids)) for ids in completions]),
        "completion_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in completions]),
        "tool_mask": torch.tensor(
            [mask[: len(ids)] + [1] * (longest - len(ids)) for mask, ids in zip(masks, completions, strict=True)]
        ),
        "advantages": torch.linspace(-1, 1, len(lengths)),
    }


def loss_and_gradients(trainer, inputs):
    trainer.model.train()
    trainer.model.zero_grad()
    trainer._metrics["train"].clear()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])
    return loss.detach(), gradients, {name: values[-1] for name, values in trainer._metrics["train"].items()}


rows = st.tuples(st.integers(1, 12), st.integers(1, 40), st.lists(st.integers(0, 1), min_size=40, max_size=40))


@pytest.fixture(params=[False, True], ids=["by rows", "by tokens"])
def cut(request, monkeypatch, trainer):
    """Cut micro-batches into passes by rows, as on a CPU, or by tokens, as on a GPU."""
    monkeypatch.setattr(trainer, "cuts_by_tokens", request.param)
    monkeypatch.setattr(trl_internals, "TOKENS_AT_ONCE", 64)
    return request.param


@pytest.mark.parametrize("others", [[1], [1, 5]])
def test_passes_are_cut_by_tokens_and_are_as_many_on_all_processes(monkeypatch, others):
    monkeypatch.setattr(trl_internals, "TOKENS_AT_ONCE", 64)
    monkeypatch.setattr(trl_internals, "gather_object", lambda own: own + others)
    lengths = [70, 3, 20, 22, 4, 30]
    mask = torch.tensor([[0] * (70 - length) + [1] * length for length in lengths])
    passes = [sorted(lengths[row] for row in part) for part in Rows(mask, mask, mask).by_tokens(4)]
    assert passes == ([[3], [4], [20], [22, 30], [70]] if 5 in others else [[3, 4, 20], [22, 30], [70]])


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(rows, min_size=1, max_size=20))
def test_loss_gradients_and_metrics_equal_trl_s(trainer, cut, rows):
    inputs = batch_of([(prompt, completion) for prompt, completion, _ in rows], [[1, *mask[1:]] for *_, mask in rows])
    ids, mask = (torch.cat([inputs[f"prompt_{what}"], inputs[f"completion_{what}"]], dim=1) for what in ("ids", "mask"))
    width, own = inputs["completion_ids"].shape[1], inputs["completion_mask"] * inputs["tool_mask"]
    with torch.no_grad():
        whole, *_ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.ref_model, ids, mask, width)
        trainer._own_BT = own
        ours, entropies, _ = trainer._get_per_token_logps_and_entropies(trainer.ref_model, ids, mask, width, 8)
    torch.testing.assert_close(ours, whole * own, **VALUES)
    assert entropies is None and (ours[own == 0] == 0).all()
    inputs["ref_per_token_logps"] = whole + 0.1 * torch.randn(whole.shape, generator=torch.Generator().manual_seed(1))

    loss, gradients, metrics = loss_and_gradients(trainer, inputs)
    trainer._get_per_token_logps_and_entropies = MethodType(GRPOTrainer._get_per_token_logps_and_entropies, trainer)
    try:
        expected_loss, expected_gradients, expected_metrics = loss_and_gradients(trainer, inputs)
    finally:
        del trainer._get_per_token_logps_and_entropies
    torch.testing.assert_close(loss, expected_loss, **VALUES)
    torch.testing.assert_close(gradients, expected_gradients, **VALUES)
    assert metrics == pytest.approx(expected_metrics, rel=1e-3, abs=1e-4)


def test_rows_are_read_without_padding(trainer):
    inputs = batch_of([(5, 30), (2, 3)] * 8, [[1, 0] * 20] * 16)
    shapes = []
    hook = trainer.model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        loss_and_gradients(trainer, inputs | {"ref_per_token_logps": torch.zeros(16, 30)})
    finally:
        hook.remove()
    assert shapes == [(8, 5), (8, 35)]


def test_a_step_without_an_env_mask_equals_trl_s(trainer):
    trainer._own_BT = None
    inputs = batch_of([(4, 9), (3, 6)], [[1] * 40] * 2)
    ids, mask = (torch.cat([inputs[f"prompt_{what}"], inputs[f"completion_{what}"]], dim=1) for what in ("ids", "mask"))
    arguments = (trainer.model, ids, mask, 9)
    with torch.no_grad():
        ours = trainer._get_per_token_logps_and_entropies(*arguments)
        theirs = GRPOTrainer._get_per_token_logps_and_entropies(trainer, *arguments)
    assert torch.equal(ours[0], theirs[0])


SMALL, RECURRENT = tiny_models.SMALL, {"block_types": ["recurrent", "attention"], "attention_window_size": 8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "config", "words"), [
    (transformers.Qwen3ForCausalLM, SMALL, ""), (transformers.Gemma2ForCausalLM, SMALL, ""),  # a cap of logits
    (transformers.CohereForCausalLM, SMALL, ""), (transformers.GraniteForCausalLM, SMALL | {"logits_scaling": 8.0}, ""),
    (transformers.RecurrentGemmaForCausalLM, SMALL | RECURRENT, "has other log-probabilities in training"),
    (transformers.BertLMHeadModel, SMALL | {"is_decoder": True}, "has other log-probabilities in training"),
    (transformers.Llama4ForCausalLM, SMALL | {"num_local_experts": 2, "intermediate_size_mlp": 32},
     "fails in TRL's head .*last_hidden_state"),
])  # fmt: skip
def test_a_model_is_trained_only_if_trl_s_head_has_its_logits(kind, config, words, dtype, tmp_path, tokenizer):
    torch.manual_seed(0)
    model = kind(kind.config_class(**config)).to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()  # logits of untrained models are too small for a cap
    rows = Dataset.from_list([{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}])
    options = {"max_steps": 1, "dataset_kwargs": {"skip_prepare_dataset": True}, "save_strategy": "no"}
    arguments = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **options)
    trainer = RightPaddedTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    prepare_training(trainer)
    model.train()
    state = torch.random.get_rng_state()
    with pytest.raises(UserError, match=f"{kind.__name__} {words}") if words else nullcontext():
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert model.training and torch.random.get_rng_state().equal(state)


@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_a_model_whose_output_embedding_starts_near_0_is_trained(scale):
    """The error is a share of the spread of logits, which is 0 there."""
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    utils.add_fused_lm_head(model)
    HeadTrial(SimpleNamespace(model=model)).on_train_begin(None, None, None)


def experts():
    """Return a config of a mixture of experts, whose weights are merged on loading."""
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return transformers.Qwen3MoeConfig(**SMALL, **sizes, architectures=["Qwen3MoeForCausalLM"])


@pytest.mark.parametrize("make", [tiny_models.gemma3, tiny_models.qwen3_5, experts])
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_training_resumes_with_all_weights_whatever_their_names_in_the_file(make, lora_rank, tmp_path, tokenizer):
    rows = [list(range(start, start + 4)) for start in range(5, 9)]
    data = Dataset.from_list([{"input_ids": row, "labels": row} for row in rows])

    def train(checkpoint=None):
        torch.manual_seed(0)
        options = {"max_steps": 2, "save_steps": 1, "dataset_kwargs": {"skip_prepare_dataset": True}}
        arguments = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], learning_rate=1e-2, **options)
        parts = {"train_dataset": data, "processing_class": tokenizer, "peft_config": lora_config(lora_rank)}
        trainer = RightPaddedTrainer(model=tiny_models.build(make()), args=arguments, **parts)
        if checkpoint:  # the first run is one of an earlier version
            prepare_training(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        return [weights.detach().clone() for weights in trainer.model.parameters()]

    whole, resumed = train(), train(str(tmp_path / "checkpoint-1"))
    assert all(map(torch.equal, whole, resumed))


@pytest.mark.parametrize("lora_rank", [0, 4], ids=["whole", "LoRA"])
def test_sft_without_a_mask_equals_trl_s(sft_path, tokenizer, policy_path, tmp_path, monkeypatch, lora_rank):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, 4096).select(range(24))
    arguments = {"use_cpu": True, "report_to": [], "save_strategy": "no", "per_device_train_batch_size": 4}
    arguments |= {"bf16": False, "logging_steps": 1}

    def logged(make):
        trainer = make(
            model=policy_path,
            args=SFTConfig(str(tmp_path), num_train_epochs=1, learning_rate=1e-3, **arguments),
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=lora_config(lora_rank),
        )
        trainer.train()
        return [[entry[key] for key in KEYS] for entry in trainer.state.log_history[:-1]]

    monkeypatch.setattr(utils, "_use_triton", chunked_logprob._use_triton)
    expected = logged(SFTTrainer)
    assert len(expected) == 6 and logged(RightPaddedTrainer) == [pytest.approx(values, rel=1e-3) for values in expected]
