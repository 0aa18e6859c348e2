"""torchrun with one-line errors: the same options and processes.

    python -m arenarl.run.launch --nproc_per_node 2 train_rl.py --config configs/quickstart.yaml

Each run finds a free port by itself, so that several runs can share a machine. The exit code is the failed process's.
"""

import logging
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from arenarl.system.errors import (
    GO_ON,
    INTERRUPTED,
    LOST_CONNECTION,
    OUT_OF_MEMORY,
    explain,
    one_line,
    owned,
    prepare_process,
    show,
)


def main() -> int:
    prepare_process()
    os.environ |= owned()
    logging.disable(logging.ERROR)  # torchrun's messages about signals and exit codes; the line below names the cause
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        failure = max(error.failures.values(), key=_diagnostic_rank)
        show(_line(failure))
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except (SignalException, KeyboardInterrupt):
        show(INTERRUPTED)
        return 130
    except ValueError as error:  # torchrun's refusal of an option
        show(f"error: torchrun: {one_line(error)}")
        return 2
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        show(line)
        return 2
    return 0


def _diagnostic_rank(failure: ProcessFailure) -> int:
    """Return how well a failure explains the cause, 0 to 2. A process that only lost its peer gets 0."""
    line = _line(failure)
    return 0 if LOST_CONNECTION in line or failure.exitcode == -signal.SIGTERM else 1 if failure.exitcode == 1 else 2


def _line(failure: ProcessFailure) -> str:
    if isinstance(failure.message, dict):
        return failure.message["message"]
    if failure.exitcode == -signal.SIGKILL:
        return f"error: a training process was killed; if nobody killed it, {OUT_OF_MEMORY}"
    if failure.exitcode < 0:
        return f"error: a training process died of {failure.signal_name()}; {GO_ON}"
    return f"error: process {failure.local_rank} failed with exit code {failure.exitcode}; see its traceback above"


if __name__ == "__main__":
    sys.exit(main())
