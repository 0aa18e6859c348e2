"""Chat templates of many models: SFT and rollouts agree on every token, and unusable templates are replaced."""

import json
import re
from pathlib import Path

import pytest
from policies import ANSWER, call, query
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, chat_template_utils

from arenarl.config.schema import RolloutConfig
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.generation import GeneratedTurn
from arenarl.rollout.policy import load_tokenizer, save_policy
from arenarl.system.errors import UserError
from arenarl.training.sft_data import IGNORED, tokenize

TEMPLATES = sorted((Path(chat_template_utils.__file__).parent / "chat_templates").glob("*.jinja"))
TOKENS = r"<\|\w+\|>|<｜[^｜]+｜>|<(?:start_of_turn|end_of_turn|turn\||\|turn)>|</?s>"
# end-of-turn tokens of templates that are not ChatML and trainable as they are
OWN_ENDS = {"llama3": "<|eot_id|>", "llama3_training": "<|eot_id|>"}


class InOrder:
    """A generator that returns prepared turns in order."""

    def __init__(self, tokenizer, turns):
        self.tokenizer, self.turns = tokenizer, iter(turns)

    async def generate(self, request):
        turn = self.tokenizer.encode(next(self.turns), add_special_tokens=False)
        return GeneratedTurn([*turn, self.tokenizer.eos_token_id])


def saved(policy_path, folder, template, **tokens):
    """Save the tests' tokenizer with another template and special tokens. Its `eos_token` ends no turn, like
    Qwen3-*-Base's."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path)
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(set(re.findall(TOKENS, template)))})
    tokenizer.add_special_tokens({"bos_token": "<|begin|>", "eos_token": "<|endoftext|>"} | tokens)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_sft_and_rollouts_agree_on_every_token_and_mask_with_any_template(path, policy_path, compact, tmp_path):
    """For all templates of TRL: they are used if they keep thoughts and results, replaced otherwise."""
    tokenizer = load_tokenizer(saved(policy_path, tmp_path, path.read_text(encoding="utf-8")))
    assert tokenizer.eos_token == OWN_ENDS.get(path.stem, "<|im_end|>")
    generator = InOrder(tokenizer, [call(query="Lotus Park"), ANSWER])
    engine = RolloutEngine(generator, tokenizer, lambda: compact, RolloutConfig(max_turn_tokens=200), False)
    (trajectory,) = engine.roll_out([Attempt(query(), 0.0, 1)])
    assert trajectory.valid and trajectory.meta["turns"] == 2
    taught = tokenize(tokenizer, trajectory.messages, None, 4096)
    token_ids = trajectory.prompt_ids + trajectory.completion_ids
    assert taught["input_ids"][: len(token_ids)] == token_ids
    own = [0] * len(trajectory.prompt_ids) + trajectory.policy_mask_T
    assert [int(label != IGNORED) for label in taught["labels"]] == own + [0] * (len(taught["labels"]) - len(own))


@pytest.mark.parametrize("template", [
    "{{ raise_exception('no roles but user') }}",
    # without an end of a turn
    "{% for message in messages %}{% generation %}{{ message['content'] }}{% endgeneration %}{% endfor %}",
    # without tool results
    "{% for m in messages %}{% if m['role'] != 'tool' %}[{{ m['role'] }}]{% generation %}{{ m['content'] "
    "}}</s>{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
])  # fmt: skip
def test_a_template_that_loses_a_part_is_replaced_or_refused_without_chatmls_tokens(
    template, policy_path, tmp_path, capsys
):
    folder = saved(policy_path, tmp_path, template, additional_special_tokens=["</s>"])
    assert load_tokenizer(folder).chat_template == chat_template_utils.qwen3_training_chat_template
    assert "Qwen3's training template replaces it" in capsys.readouterr().out
    for file in ("tokenizer.json", "tokenizer_config.json"):
        path = tmp_path / file
        path.write_text(path.read_text().replace("<|im_", "<|in_"))
    lost = "is not trainable, because it loses thoughts, tool results or the end of a turn"
    with pytest.raises(UserError, match=lost) as refused:
        load_tokenizer(folder)
    assert "\n" not in str(refused.value)


def test_the_pad_token_differs_from_the_end_of_turn_token(policy_path, tmp_path):
    folder = saved(policy_path, tmp_path, chat_template_utils.qwen3_chat_template)
    config = tmp_path / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("pad_token", None)
    config.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_a_policy_is_saved_with_the_token_that_ends_its_turns(policy_path, sft_path, tmp_path):
    from arenarl.training.sft_data import tokenize_trajectories
    from arenarl.training.sft_internals import RightPaddedTrainer

    start, model = tmp_path / "start", AutoModelForCausalLM.from_pretrained(policy_path)
    model.config.eos_token_id = model.generation_config.eos_token_id = 0  # <|endoftext|>
    tokenizer = load_tokenizer(saved(policy_path, start, chat_template_utils.qwen3_chat_template))
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(start)
    arguments = {"use_cpu": True, "report_to": [], "save_strategy": "no", "bf16": False, "max_steps": 1}
    rows = tokenize_trajectories(sft_path, tokenizer, None, 4096).select(range(8))
    options = SFTConfig(str(tmp_path), dataset_kwargs={"skip_prepare_dataset": True}, **arguments)
    trainer = RightPaddedTrainer(model=str(start), args=options, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    save_policy(trainer, tmp_path / "saved")
    end = load_tokenizer(str(tmp_path / "saved")).eos_token_id
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["eos_token_id"] == end
    # transformers keeps the old one as well
    assert json.loads((tmp_path / "saved" / "generation_config.json").read_text())["eos_token_id"][0] == end
