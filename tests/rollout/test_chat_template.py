"""Chat templates of many models: SFT and rollouts agree on every token, and unusable templates are replaced."""

import json
import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from policies import ANSWER, Echo, call, query
from tiny_tokenizers import KINDS, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, chat_template_utils

from arenarl.config.schema import RolloutConfig
from arenarl.rollout.chat_template import ChatEncoder, chat_encoder, make_trainable
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
        return GeneratedTurn([*chat_encoder(self.tokenizer).start_ids(next(self.turns)), self.tokenizer.eos_token_id])


def assert_parity(tokenizer, make, turns, **options):
    """Roll out the turns; SFT of the trajectory has the same tokens and trains on the policy's. Return the engine."""
    limits = {"max_turn_tokens": 900, "max_tokens": 9000, "max_turns": len(turns)}
    for schemas, system in ((True, None), (True, "Use the tools."), (False, None)):
        config = RolloutConfig(**limits, **options)
        engine = RolloutEngine(InOrder(tokenizer, turns), tokenizer, make, config, schemas, system)
        (trajectory,) = engine.roll_out([Attempt(query(), 0.0, 1)])
        assert trajectory.valid and trajectory.meta["turns"] == len(turns)
        taught = tokenize(tokenizer, trajectory.messages, engine.tools, 9999)
        token_ids = trajectory.prompt_ids + trajectory.completion_ids
        assert taught["input_ids"][: len(token_ids)] == token_ids
        own = [0] * len(trajectory.prompt_ids) + trajectory.policy_mask_T
        if not config.force_answer:
            assert [label != IGNORED for label in taught["labels"]][: len(own)] == [bool(is_own) for is_own in own]
            assert all(label == IGNORED for label in taught["labels"][len(own) :])
        prompt = tokenizer.decode(trajectory.prompt_ids).lower()
        assert all((tool["function"]["name"] in prompt) == schemas for tool in make().tools)
        assert (system or "").lower() in prompt
    return engine


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
    assert_parity(tokenizer, lambda: compact, [call(query="Lotus Park"), ANSWER])


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


# Templates as in the wild: tags that are ordinary text, labels, and brackets; none shows the tools.
TAGS = """{{ '<s>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}
{%- generation %}{{ m['content'] + '</s>' }}{% endgeneration %}{% else %}{{ m['content'] + '</s>' }}{% endif %}
{{- '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
LABELS = """{% for m in messages %}{% if m['role'] == 'assistant' %}ASSISTANT:{% generation %}
{{- m['content'] + '</s>' }}{% endgeneration %}{% else %}{{ m['role'].upper() + ': ' + m['content'] + ' ' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
BRACKETS = """{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '</s>' }}
{%- endgeneration %}{% else %}{{ '[INST]' + m['content'] + '[/INST]' }}{% endif %}{% endfor %}"""
HOSTILE = {TAGS: ["<|assistant|>", "</tools>"], LABELS: ["ASSISTANT:", "TOOL:"], BRACKETS: ["[INST]", "[/INST]"]}


class Speaks(Echo):
    """A tool whose name, description, arguments and results contain a text."""

    def __init__(self, text):
        super().__init__()
        properties = {f"query{text}": {"type": "string", "enum": [f"a{text}b"], "description": text}}
        parameters = {"type": "object", "properties": properties}
        function = {"name": f"look{text}up", "description": f"Look {text}", "parameters": parameters}
        self.text, self.tools = text, [{"type": "function", "function": function}]

    async def call(self, name, arguments):
        self.log.append(name)
        return f"found {self.text} at  Lotus Park"


@pytest.mark.parametrize(("kind", "template"), list(zip(KINDS, cycle(HOSTILE), strict=False)), ids=KINDS)
def test_sft_and_rollouts_agree_with_any_tokenizer_and_its_control_tokens_never_come_from_text(kind, template, capsys):
    tokenizer = tiny_tokenizer(kind, template)
    make_trainable(tokenizer, "a policy")
    assert_parity(tokenizer, lambda: Speaks(""), [call("lookup", x="Lotus Park"), ANSWER])
    assert_parity(tokenizer, lambda: Speaks(""), [call("lookup"), "Lotus Park\n</answer>"], force_answer=True)
    assert capsys.readouterr().out.count("does not show the tools") <= 1

    def tokens(text):
        world, shown = Speaks(text), chat_encoder(tokenizer).harmless(f"look{text}up")
        generator = InOrder(tokenizer, [call(shown), ANSWER])
        config = RolloutConfig(max_turn_tokens=900)
        engine = RolloutEngine(generator, tokenizer, lambda: world, config, True)
        (trajectory,) = engine.roll_out([Attempt(replace(query(), query=f"Find {text} it."), 0.0, 1)])
        assert world.log == [f"look{text}up"] or "lower" in kind  # the policy calls the name that it reads
        taught = tokenize(tokenizer, trajectory.messages, world.tools, 9999)["input_ids"]
        rolled = trajectory.prompt_ids + trajectory.completion_ids
        assert taught[: len(rolled)] == rolled
        return rolled

    control = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
    plain = tokens("x")
    counts = {number: plain.count(number) for number in control}
    texts = ["</S>" if "lower" in kind else "</s>", "<s></s>", "</s</s>>", "what is asked", "what is said"]
    for text in [*texts, *control.values(), *HOSTILE[template]]:
        ids = tokens(text)
        assert {number: ids.count(number) for number in control} == counts
        decoded = [tokenizer.decode(ids).count(mark) for mark in HOSTILE[template]]
        assert decoded == [tokenizer.decode(plain).count(mark) for mark in HOSTILE[template]]
    for text in ("plain <b>text</b> 3 < 4 | 荷花 [1] {a: 1}", "C++  covid-19\n\n...", "a </ s> b", "日本😀"):
        assert chat_encoder(tokenizer).harmless(text) == text


PAGE = (Path(__file__).parents[2] / "docs" / "chat_templates.md").read_text(encoding="utf-8")
# as a part of the last query, the tools would vanish once a turn follows: SFT would teach another prompt
IN_LAST = TAGS.replace("{{ '<|' + m['role']", "{% if tools and loop.last and m['role'] == 'user' %}{{ tools | tojson }}"
                       "{% endif %}{{ '<|' + m['role']", 1)  # fmt: skip
SHOWN = dict(zip(("gemma", "llama"), re.findall(r"```jinja\n(.*?)```", PAGE, re.DOTALL), strict=True))


@pytest.mark.parametrize(("kind", "template"), [
    ("metaspace first", SHOWN["gemma"]), ("metaspace first", SHOWN["llama"]), ("bytes", IN_LAST),
], ids=["gemma", "llama", "tools in the last message"])  # fmt: skip
def test_templates_of_the_documentation_and_with_tools_in_the_last_message_show_everything(kind, template):
    tokenizer = tiny_tokenizer(kind, template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>", "<|eot_id|>"]})
    make_trainable(tokenizer, "a policy")
    two_calls = call("lookup", x="a") + "\n" + call("lookup", x="b").partition("\n\n")[2]
    assert_parity(tokenizer, lambda: Speaks(""), [two_calls, call("lookup"), ANSWER])


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_fits_is_whole_though_the_template_drops_blanks_around_it(kind, monkeypatch):
    """The blanks alone have far more tokens than there is room for."""
    tokenizer = tiny_tokenizer(kind, TAGS.replace("m['content']", "m['content'] | trim"))
    make_trainable(tokenizer, "a policy")
    config, environment, prompts = RolloutConfig(max_tokens=1500), Speaks(""), []
    for result in ("The park is open.", "\n" * 9000 + "The park is open.", "\n" * 9000 + "The park is open. " * 900):
        monkeypatch.setattr(environment, "call", lambda name, arguments, result=result: result)
        engine = RolloutEngine(InOrder(tokenizer, [call("lookup"), ANSWER]), tokenizer, lambda: environment, config)
        (trajectory,) = engine.roll_out([Attempt(query(), 0.0, 1)])
        prompts.append((trajectory.stop_reason, trajectory.completion_ids))
    assert prompts[0] == prompts[1] and prompts[0][0] == "answer" and prompts[2][0] == "max_tokens"


def test_words_and_blanks_among_added_tokens_are_ordinary_text(tokenizer):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    tokenizer.add_tokens(["  ", "\n\n", "covid-19", "C++", "->", "<tool>"])
    encoder = ChatEncoder(tokenizer)
    text = 'covid-19  in C++\n\n-> {"start": "a", "end": "b"}'
    assert encoder.harmless(text) == text and encoder.harmless("a <tool>") == "a < tool>"


def refusing(condition, problem):
    """Return a template that raises an error on a condition."""
    return TAGS.replace("{% for", "{% if " + condition + " %}{{ " + problem + " }}{% endif %}{% for", 1)


@pytest.mark.parametrize(("template", "system", "schemas", "expected"), [
    (refusing("messages[0]['role'] == 'system'", "raise_exception('System role not supported')"), "Be brief.", False,
     r"refuses a system message \(System role not supported\).*rollout.system_prompt=none, or .*chat_templates.md"),
    (refusing("messages[0]['role'] == 'system'", "raise_exception('no')"), "Be brief.", True,
     "rollout.system_prompt=none and environment.schemas_in_prompt=false"),
    (refusing("messages[0]['role'] == 'system'", "1 + 'a'"), None, True, "set environment.schemas_in_prompt=false"),
    (TAGS.replace("messages %}", "messages if m['role'] != 'system' %}", 1), "Be brief.", False, "drops the system"),
    (refusing("messages | selectattr('role', 'equalto', 'tool') | list | length > 1", "raise_exception('one tool')"),
     None, False, r"refuses messages of roles user, assistant, tool, tool \(one tool\)"),
    ("{% if messages | length > 4 %}x{% endif %}" + TAGS, "Be brief.", False, "writes another prompt once a turn"),
])  # fmt: skip
def test_a_template_that_refuses_a_part_is_named_before_work_starts(template, system, schemas, expected):
    tokenizer = tiny_tokenizer("bytes", template)
    make_trainable(tokenizer, "a policy")
    with pytest.raises(UserError, match=expected) as refused:
        RolloutEngine(None, tokenizer, lambda: Speaks(""), RolloutConfig(), schemas, system)
    assert "\n" not in str(refused.value)
    RolloutEngine(None, tiny_tokenizer("bytes", TAGS), lambda: Speaks(""), RolloutConfig(), True, "Be brief.")


def test_the_refusal_of_an_untrainable_template_repeats_its_own_words(tmp_path):
    gemma = (Path(chat_template_utils.__file__).parent / "chat_templates" / "gemma.jinja").read_text(encoding="utf-8")
    tokenizer = tiny_tokenizer("bytes", gemma)
    with pytest.raises(UserError, match=r"\(Conversation roles must alternate.*docs/chat_templates.md"):
        make_trainable(tokenizer, "gemma")
    with pytest.raises(UserError, match="or ends a prompt with a blank"):
        make_trainable(tiny_tokenizer("metaspace first", LABELS.replace("ASSISTANT:", "ASSISTANT: ")), "vicuna")
