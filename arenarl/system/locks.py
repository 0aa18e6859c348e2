"""The lock of a command on a file that it writes until it ends. For a short change, `filelock.FileLock` waits."""

import sys
from typing import IO

from arenarl.system.progress import say

if sys.platform != "win32":
    import fcntl


def try_lock(file: IO) -> bool:
    """Lock an open file until it is closed. Return False if it is locked already.

    Prints a line on a file system without locks. On Windows, nothing is locked.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        say(f"{file.name} is on a file system without locks; do not start this command twice at once")
    return True
