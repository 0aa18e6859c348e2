"""Make training data with LLMs in the three stages of Section 5: queries, trajectories, inspection; write the splits.

    python data/build.py --config configs/data/travel.yaml                     all stages; finished ones are skipped
    python data/build.py --config configs/data/travel.yaml --stage queries     some stages
    python data/build.py --config configs/data/local.yaml --max-cost 5         stop at a cost; rerun to continue

Each stage first estimates its calls and cost. Every reply is stored, so a killed run resumes without paying twice.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arenarl.config.command_line import parse_arguments  # noqa: E402
from arenarl.run.stage import fix_randomness  # noqa: E402
from arenarl.synthesis.stages import STAGES, run  # noqa: E402
from arenarl.system.errors import run_cli  # noqa: E402


def main() -> None:
    def add_arguments(parser) -> None:
        stages = {"nargs": "+", "choices": STAGES, "default": list(STAGES)}
        parser.add_argument("--stage", help="stages to run (default: all)", **stages)
        max_cost = {"action": "append", "dest": "overrides", "type": "judge.max_cost={}".format}
        parser.add_argument("--max-cost", metavar="COST", help="same as --set judge.max_cost=COST", **max_cost)

    config, arguments = parse_arguments(__doc__, add_arguments)
    fix_randomness(config)
    run(config, arguments.stage)


if __name__ == "__main__":
    run_cli(main)
