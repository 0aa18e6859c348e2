"""What a run shows while it works: a bar with the time left, and of the libraries only what matters.

On a terminal the bar is redrawn in place; in a log it is a line every half minute.
Only the main process shows anything.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

_ON_TERMINAL = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left]{postfix}"
_IN_LOG = "{desc} {percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining} left]{postfix}"


def process_rank() -> int:
    """This one's number among those that the launcher started; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def is_main_process() -> bool:
    return process_rank() == 0


def process_count() -> int:
    """How many the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def share_of(total: int) -> int:
    """Of so many calls at once, those of this process: at least one."""
    return max(1, total // process_count() + (process_rank() < total % process_count()))


def say(text: str) -> None:
    """Print on the main process."""
    if is_main_process():
        print(text, flush=True)


class Bar(tqdm):
    """A stage's progress, from `done` of `total`."""

    def __init__(self, title: str, total: int, done: int = 0):
        is_terminal = sys.stderr.isatty()
        seconds = 0.2 if is_terminal else 30
        super().__init__(
            desc=title,
            total=total,
            initial=done,
            disable=not is_main_process(),
            dynamic_ncols=is_terminal,
            mininterval=seconds,
            maxinterval=seconds,
            bar_format=_ON_TERMINAL if is_terminal else _IN_LOG,
            # one after the other; left to itself tqdm puts it below one that has ended and is still referred to
            position=0,
        )

    @staticmethod
    def status_printer(file):
        if file.isatty():
            return tqdm.status_printer(file)
        return lambda text: print(text, file=file, flush=True)

    def close(self) -> None:
        if not self.disable and not sys.stderr.isatty():
            self.refresh()
            self.disable = True  # the line has ended: tqdm would end it once more
        super().close()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items, one step for each that was worked off."""
        for item in items:
            yield item
            self.update()

    def note(self, text: str) -> None:
        """Show a text behind the bar, the next time it is drawn."""
        self.set_postfix_str(text, refresh=sys.stderr.isatty())


def quiet_libraries() -> None:
    """Silence what the libraries say on every run whatever happens; warnings that depend on the run stay."""
    import transformers

    if datasets := sys.modules.get("datasets"):  # evaluation does without
        datasets.disable_progress_bars()  # a bar for each of a dozen steps that take a second together
    transformers.utils.logging.disable_progress_bar()  # a bar for each checkpoint read or written
    # DeepSpeed's, every step
    warnings.filterwarnings("ignore", message=".*torch.distributed.* is deprecated", category=FutureWarning)
