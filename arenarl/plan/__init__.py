"""Before a run starts: will it fit its GPUs, how long will it take, and how many judge calls will it make?

    python -m arenarl.plan --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8

Everything follows from the config and the model's shape; nothing is loaded or called. Open `stage` first, which adds up
what a stage needs and whether it fits: bytes from `memory`, calls from `estimate`. The command searches for changes
that would make it fit.
"""
