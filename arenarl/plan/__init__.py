"""Plan a run before it starts: does it fit its GPUs, how long will it take, and how many judge calls will it make?

    python -m arenarl.plan --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8

The plan follows from the config and the model's shape; it loads and calls nothing. Open `stage` first: it adds up the
bytes from `memory` and the calls from `estimate`. The command also searches for changes that make a run fit.
"""
