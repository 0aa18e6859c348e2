"""The project's data types, and Qwen3's text form of a turn.

`vocabulary`: queries, trajectories, rollout groups. `messages`: turns, tool calls, and the grammar between generated
text, chat messages and turns. `records`: JSONL files. `text`: untrusted JSON and text, language detection.
"""

# ruff: noqa: F401, I001 - imported for the other packages
from arenarl.trajectory.messages import (
    ACTION_BEGINS, ToolCall, Turn, answer_message, answer_of, answer_text, assistant_message, assistant_text,
    call_messages, calls_of, last_answer, messages_of, native_call, native_calls, parse_turn, read_turns,
    repeated_calls, reply_message, tool_message, with_system_prompt,
)  # fmt: skip
from arenarl.trajectory.records import (
    SPLIT_FILES, append_step, how_to_get, numbered_records, read_jsonl, read_queries, read_steps, read_trajectories,
    write_jsonl,
)  # fmt: skip
from arenarl.trajectory.text import (
    MAX_NESTING, MAX_RECORD_NESTING, composed, estimate_tokens, harmless, is_blank, json_problem, language_of,
    parse_json, storable, storable_json, text_key, text_of, words_of,
)  # fmt: skip
from arenarl.trajectory.vocabulary import VALID_ENDS, Query, RolloutGroup, Trajectory, prompt_messages
