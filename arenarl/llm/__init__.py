"""Clients for LLMs behind OpenAI-compatible APIs: judges, query rubrics, simulated tools, closed policies.

Rollout, domains and judges call this package. Open `client` first: retries, one limit for all calls, budgets.
`transport` makes one attempt. `reply_store` keeps every reply, so that no call is paid for twice. `prompts` quotes
foreign text, `json_reply` parses replies.
"""
