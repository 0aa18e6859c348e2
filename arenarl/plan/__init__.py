"""Before a run starts: does it fit its GPUs, how long will it take, how many judge calls will it make.

    python -m arenarl.plan --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8

Everything follows from the config and the model's shape; nothing is loaded or asked. Open `stage` first, which adds up what a stage takes
and says whether that fits: bytes from `memory`, calls from `estimate`; `remedies` tries what would make it fit.
"""
