"""torchrun whose failures end as one line: the same options, the same processes.

    python -m arenarl.run.launch --nproc_per_node 2 train_rl.py --config configs/quickstart.yaml

Each run finds a free port by itself, so that several can share a machine.
The exit code is that of the process that failed.
"""

import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from arenarl.system.errors import GO_ON, INTERRUPTED, LOST_CONNECTION, OUT_OF_MEMORY, end_with_parent, explain, show


def main() -> int:
    end_with_parent()
    # what torchrun says of signals and exit codes; the line below says what was the matter
    logging.disable(logging.ERROR)
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        failure = max(error.failures.values(), key=_diagnostic_rank)
        show(_line(failure))
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except (SignalException, KeyboardInterrupt):
        show(INTERRUPTED)
        return 130
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        show(line)
        return 2
    return 0


def _diagnostic_rank(failure: ProcessFailure) -> int:
    """How much a failure says of the cause: a process that only lost its peer says less than the peer."""
    line = _line(failure)
    return 0 if LOST_CONNECTION in line or failure.exitcode == -signal.SIGTERM else 1 if failure.exitcode == 1 else 2


def _line(failure: ProcessFailure) -> str:
    if isinstance(failure.message, dict):
        return failure.message["message"]
    if failure.exitcode == -signal.SIGKILL:
        return f"error: a training process was killed; if nobody did that, {OUT_OF_MEMORY}"
    if failure.exitcode < 0:
        return f"error: a training process died of {failure.signal_name()}; {GO_ON}"
    return f"error: process {failure.local_rank} failed with exit code {failure.exitcode}; its traceback stands above"


if __name__ == "__main__":
    sys.exit(main())
