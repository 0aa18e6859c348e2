"""query → trajectory: a policy and an environment's tools take turns; RL rolls out a group for every query.

Training and evaluation share all of it. Start with `engine`, which runs the turns. `environment` is the interface that
tools implement; `generation` is the interface of back ends: transformers, vLLM in the process, a vLLM server.
`weight_sync` copies the trainer's weights to vLLM and checks the copy; `vllm_internals` holds vLLM's private parts.
"""
