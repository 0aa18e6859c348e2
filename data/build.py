"""Makes training data with LLMs in the three stages of Section 5: queries, trajectories, inspection, and the splits that the scripts read.

    python data/build.py --config configs/data/travel.yaml                      all stages; what is done is left alone
    python data/build.py --config configs/data/travel.yaml --stage queries      one, or several in a row
    python data/build.py --config configs/data/local.yaml --max-cost 5          never pays for more; start it again with more to go on

Each stage says before it starts what it will ask and cost. Every reply is kept: a run that is killed goes on, and pays for nothing twice.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arenarl.config.command_line import parse_arguments  # noqa: E402
from arenarl.run.stage import fix_randomness  # noqa: E402
from arenarl.synthesis.stages import STAGES, run  # noqa: E402
from arenarl.system.errors import guarded  # noqa: E402


def main() -> None:
    def add_arguments(parser) -> None:
        parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES), help="which to run; all without it")
        max_cost = {"action": "append", "dest": "overrides", "type": "judge.max_cost={}".format}
        parser.add_argument("--max-cost", metavar="COST", help="the same as --set judge.max_cost=COST", **max_cost)

    config, arguments = parse_arguments(__doc__, add_arguments)
    fix_randomness(config)
    run(config, arguments.stage)


if __name__ == "__main__":
    guarded(main)
