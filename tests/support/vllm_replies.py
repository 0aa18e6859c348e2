"""What vLLM 0.31 replies when it has no answer, word for word:
tests/judges/test_vllm_judge.py holds a real server to it."""

import json

from hostile import completion_of


def refusal(status, message, kind, param=None):
    """(status, body)"""
    return status, json.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


BUSY = refusal(  # with --max-num-queued-reqs; without, it queues whatever comes
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)
DEAD = refusal(
    500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError"
)


def too_long(context, reply, prompt):
    """A prompt of so many tokens and a reply of up to so many, for a server of this --max-model-len.
    It stops counting where it is too much."""
    at_least = "at least " if prompt == context - reply + 1 else ""
    said = (
        f"However, you requested {reply} output tokens and your prompt contains {at_least}{prompt} input tokens, "
        f"for a total of {at_least}"
    )
    advice = "Please reduce the length of the input prompt or the number of requested output tokens."
    message = (
        f"This model's maximum context length is {context} tokens. {said}{prompt + reply} tokens. "
        f"{advice} (parameter=input_tokens, value={prompt})"
    )
    return refusal(400, message, "BadRequestError", "input_tokens")


def reply_too_long(context, reply):
    message = f"max_tokens={reply} cannot be greater than max_model_len={context}. Please request fewer output tokens."
    return refusal(400, f"{message} (parameter=max_tokens, value={reply})", "BadRequestError", "max_tokens")


def not_served(model):
    return refusal(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def broken_off(text):
    """Paused, it answers what is under way with what it has, and status 200."""
    said = completion_of(text)
    said["choices"][0]["finish_reason"] = "abort"
    return 200, json.dumps(said)
