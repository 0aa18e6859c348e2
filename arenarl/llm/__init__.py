"""LLMs behind OpenAI-compatible APIs, whatever they are asked for: verdicts, rubrics, tickets, a closed policy's turns.

Below rollout, domains and judges, which all ask. Open `client` first: retries, one limit for all calls, budgets.
`transport` makes one attempt. `reply_store` keeps every reply, so that a call is paid for once; `prompts` and
`json_reply` are what is sent and how the answer is read.
"""
