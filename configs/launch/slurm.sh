#!/usr/bin/env bash
# SFT and RL on a SLURM cluster: sbatch configs/launch/slurm.sh train_sft.py configs/travel/sft_qwen3_8b.yaml [--set key=value ...]
# 4 machines with 8 GPUs, one launcher per machine. RL uses one machine: sbatch --nodes 1 configs/launch/slurm.sh train_rl.py configs/travel/...
#SBATCH --job-name=arenarl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail
script=$1 config=$2
shift 2
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")  # the whole list: with pipefail, a pipe into head can fail the script
# After a kill and a requeue by the scheduler, the same command resumes from its last complete checkpoint.
srun --kill-on-bad-exit=1 python -m arenarl.run.launch --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node "${GPUS:-8}" \
  --rdzv_backend c10d --rdzv_endpoint "${hosts%%$'\n'*}:${PORT:-29500}" --rdzv_id "$SLURM_JOB_ID" "$script" --config "$config" "$@"
