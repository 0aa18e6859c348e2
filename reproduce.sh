#!/usr/bin/env bash
# One line a stage or table: ./reproduce.sh STAGE [--set key=value ...]. Sets up .venv on first use.
# CONFIG=configs/... takes another YAML, PROCESSES=8 another number of training processes.
set -euo pipefail
cd "$(dirname "$0")"
CONFIG=${CONFIG:-configs/quickstart.yaml}
PROCESSES=${PROCESSES:-2}

# Bad input is refused by the checks, in one line and with exit code 2; under torchrun that line would drown.
check() { python -m arenarl.config --config "$CONFIG" --processes "$PROCESSES" "$@" > /dev/null; }
train() {
  script=$1; shift
  python "$script" --check --config "$CONFIG" "$@"
  torchrun --nproc_per_node "$PROCESSES" "$script" --config "$CONFIG" "$@"
}

data()      { python data/prepare.py travel --config "$CONFIG" "$@"; }
sft()       { train train_sft.py "$@"; }
rl()        { train train_rl.py "$@"; }
evaluate()  { python evaluate.py --config "$CONFIG" "$@"; }
pipeline()  { data "$@"; sft "$@"; rl "$@"; evaluate "$@"; }
baselines() { for name in grpo gspo grpo_trajectory noise_free; do CONFIG=configs/quickstart_$name.yaml; rl "$@"; evaluate "$@"; done; }
readme()    { python -m arenarl.report --readme; }
judge_check()  { data; python -m arenarl.judge_check --config "$CONFIG" "$@"; }
judge_faults() { data; sft; python -m arenarl.judge_faults --config "$CONFIG" "$@"; }
bench()     { python -m arenarl.environments.benchmark; }
test()      { python -m pytest -q --doctest-modules tests arenarl "$@"; }

environment() {
  if ! cmp -s requirements.txt .venv/installed.txt; then
    echo "setting up .venv (once)"
    python3 -m venv .venv
    .venv/bin/pip install --quiet "$(grep '^torch==' requirements.txt)"
    .venv/bin/pip install --quiet -r requirements.txt
    cp requirements.txt .venv/installed.txt
  fi
  export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD"
  export TRL_EXPERIMENTAL_SILENCE=1 TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
  if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    export DS_ACCELERATOR=cpu OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # results depend on the number of threads
  fi
}

usage() {
  echo "usage: ./reproduce.sh STAGE [--set key=value ...]"
  echo "  pipeline                      data, SFT, RL, evaluation → results/quickstart/summary.json"
  echo "  data | sft | rl | evaluate    one of its stages"
  echo "  baselines                     GRPO and GSPO with pointwise rewards, and a judge without errors, from the same SFT policy"
  echo "  readme                        the README's results from results/"
  echo "  judge_check                   how good a judge is: --judge configs/judges/x.yaml"
  echo "  judge_faults                  RL against a judge server that fails in every way"
  echo "  bench                         tool calls per second"
  echo "  test                          all tests"
  exit 2
}

stage=${1:-}
case "$stage" in
  pipeline | data | sft | rl | baselines) shift; environment; check "$@"; "$stage" "$@" ;;
  evaluate | judge_check | judge_faults | readme | bench | test) shift; environment; "$stage" "$@" ;;
  *) usage ;;
esac
