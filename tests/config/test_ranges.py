"""What each number may be, as the rules were before they stood beside the keys (computed then), and how a number is read."""

import re
from pathlib import Path

import pytest

from arenarl.config import schema
from arenarl.config.load import load_config
from arenarl.system.errors import UserError

VALUES = ("0", "-1", ".nan", ".inf", "2", "true", "abc")
RUN = "evaluate: {api: {x: {name: llm, model: m, price_in: 1, price_out: 1}}}\ndata: {research: {hop_weights: [1]}}"
JUDGES = ("judge.train", "judge.eval.0")
LLMS = (
    *JUDGES, "judge.verifier", "environment.tickets", "environment.search.snippet", "environment.search.summary", "data.research.rephraser",
    "evaluate.api.x",
)  # fmt: skip
LISTS = {"data.research.hop_weights", "data.research.branching", "rollout.turn_schedule", "group_stage.weights", "evaluate.max_turns"}
REFUSED = {  # of the first five of VALUES
    ".nan .inf": """
        seed policy.scratch.hidden_size policy.scratch.intermediate_size policy.scratch.num_layers policy.scratch.num_heads
        policy.scratch.num_kv_heads policy.scratch.head_dim policy.scratch.rope_theta policy.scratch.vocab_size policy.scratch.max_positions
        policy.lora_rank data.seed LLM.temperature LLM.price_in LLM.price_out environment.world_seed JUDGE.position_bias JUDGE.length_bias
        sft.epochs sft.learning_rate sft.warmup_ratio sft.weight_decay sft.save_steps rl.learning_rate rl.epsilon rl.epsilon_high
        rl.max_grad_norm rl.save_steps rl.eval_steps rl.eval_queries evaluate.bootstrap""",
    "0 -1 .nan .inf": """
        threads data.sft_size data.rl_size data.test_per_subtask data.baseline_attempts data.research.hop_weights data.research.max_clues
        data.research.branching data.research.retriever_results data.research.max_tool_calls LLM.max_reply_tokens LLM.timeout_s LLM.patience_s
        environment.search.corpus_size environment.search.web.timeout_s environment.search.web.max_page_bytes
        environment.search.web.concurrency environment.search.results environment.search.search_chunk_tokens
        environment.search.browse_chunk_tokens environment.search.bm25_chunks environment.search.snapshot_chunks
        environment.search.embedded_chunks environment.search.reranked_chunks environment.search.snippet_words
        environment.search.summary_above_chars rollout.group_size rollout.temperature rollout.max_turns rollout.turn_schedule
        rollout.max_tokens rollout.max_turn_tokens rollout.batch_size rollout.parity_steps rollout.parity_bound JUDGE.max_result_chars
        JUDGE.max_text_chars JUDGE.rounding judge.concurrency judge.max_calls judge.max_cost tournament.timeout_s group_stage.repeats
        group_stage.winners group_stage.final group_stage.weights sft.batch_size sft.gradient_accumulation sft.max_length rl.steps rl.groups
        rl.micro_batch_size rl.updates_per_rollout rl.difficulty.samples evaluate.samples evaluate.max_turns""",
    "-1 .nan .inf": "JUDGE.sigma_independent JUDGE.sigma_call JUDGE.sigma_sticky rl.advantage_epsilon rl.beta",
    "-1 .nan .inf 2": """
        data.teacher_skill data.careful_share data.baseline_skill data.research.open_share data.research.plain_share judge.max_failure_share
        reward.entity_recall sft.stop_at_valid rl.advantage_ddof rl.difficulty.low rl.difficulty.high""",
    # the 2 of all but vllm_memory by a rule between keys
    "0 -1 .nan .inf 2": "rollout.turns_every rollout.vllm_memory group_stage.group reward.repeats",
}


def numbers(keys):
    """The keys of a line of REFUSED, LLM and JUDGE each in all their places."""
    for key in keys.split():
        place, _, name = key.partition(".")
        yield from (f"{section}.{name}" for section in {"LLM": LLMS, "JUDGE": JUDGES}.get(place, ())) if place.isupper() else (key,)


@pytest.mark.parametrize("refused", REFUSED)
def test_no_number_is_refused_or_accepted_that_was_not_before(refused, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    for key in numbers(REFUSED[refused]):
        outcome = []
        for value in VALUES:
            override = f"{key}=[{value}]" if key in LISTS else f"{key}={value}"
            try:
                load_config(tmp_path / "run.yaml", [override])
            except UserError:
                outcome.append(value)
        assert outcome == [*refused.split(), "true", "abc"], key


def test_no_key_has_a_type_that_takes_true_for_a_number():
    assert not re.findall(r"^    \w+: [^=#]*\b(?:int|float|Any)\b.*", Path(schema.__file__).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("text", "number"), [("2e-5", 2e-5), ("1", 1.0), ("'0.5'", 0.5)])
def test_a_number_is_read_as_python_writes_it(text, number, tmp_path):
    (tmp_path / "run.yaml").write_text(f"rl: {{learning_rate: {text}}}")
    assert load_config(tmp_path / "run.yaml").rl.learning_rate == number
