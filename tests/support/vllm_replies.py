"""The exact error replies of vLLM 0.31; tests/judges/test_vllm_judge.py compares them with a real server's."""

import json

from hostile import completion_of


def refusal(status, message, kind, param=None):
    """Return (status, body)."""
    return status, json.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


BUSY = refusal(  # only with --max-num-queued-reqs; without it, vLLM queues every request
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)
DEAD = refusal(
    500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError"
)


def too_long(context, reply, prompt):
    """Return the refusal of `prompt` and `reply` tokens with --max-model-len `context`.

    vLLM stops counting the prompt at the first token too many, and then writes "at least".
    """
    at_least = "at least " if prompt == context - reply + 1 else ""
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested {reply} output tokens and "
        f"your prompt contains {at_least}{prompt} input tokens, for a total of {at_least}{prompt + reply} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens. "
        f"(parameter=input_tokens, value={prompt})"
    )
    return refusal(400, message, "BadRequestError", "input_tokens")


def reply_too_long(context, reply):
    message = f"max_tokens={reply} cannot be greater than max_model_len={context}. Please request fewer output tokens."
    return refusal(400, f"{message} (parameter=max_tokens, value={reply})", "BadRequestError", "max_tokens")


def not_served(model):
    return refusal(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def broken_off(text):
    """Return the reply of a paused server to a running request: its text so far, with status 200."""
    reply = completion_of(text)
    reply["choices"][0]["finish_reason"] = "abort"
    return 200, json.dumps(reply)
