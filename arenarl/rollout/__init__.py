"""query → trajectory: a policy and an environment's tools take turns; in RL a group of them for every query.

Training and evaluation share all of it. Open `engine` first, which plays the turns; `environment` is what tools must
offer it, `generation` what a back end must: transformers, vLLM in the process, a vLLM server. `weight_sync`
keeps vLLM's policy the trainer's and checks it; `vllm_internals` holds what is private of vLLM.
"""
