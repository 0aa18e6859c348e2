"""Progress of a run on the screen: a bar with the time left, and fewer messages from libraries.

On a terminal the bar is redrawn in place; in a log file it is one line every 30 s. Only the main process prints.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from tqdm import tqdm

from arenarl.system.errors import UserError, one_line, printable_lines

T = TypeVar("T")

_ON_TERMINAL = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left]{postfix}"
_IN_LOG = "{desc} {percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining} left]{postfix}"


def launcher_number(name: str, default: int, least: int = 1) -> int:
    """Return the number in an environment variable that a launcher such as torchrun sets; `default` if it is not set.
    Raises UserError for other text, such as a blank, and for a number below `least`."""
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        problem = f"{name}={one_line(text)} is set, but is not a number from {least}"
        raise UserError(f"{problem}; unset it, or start the script with torchrun, which sets it")
    return int(text)


def process_rank() -> int:
    """Return this process's rank; 0 without a launcher."""
    return launcher_number("RANK", 0, least=0)


def is_main_process() -> bool:
    return process_rank() == 0


def process_count() -> int:
    """Return the number of processes; 1 without a launcher."""
    return launcher_number("WORLD_SIZE", 1)


def machine_count() -> int:
    """Return the number of machines, or of launchers; 1 without a launcher that sets LOCAL_WORLD_SIZE."""
    return -(-process_count() // launcher_number("LOCAL_WORLD_SIZE", process_count()))


def share_of(total: int) -> int:
    """Return this process's share of `total` concurrent calls, at least 1."""
    return max(1, total // process_count() + (process_rank() < total % process_count()))


def say(text: str) -> None:
    """Print a text on the main process, each line in printable form."""
    if is_main_process():
        print(printable_lines(text), flush=True)


@cache
def say_once(text: str) -> None:
    """Print a text as `say` does, unless this process has printed it before."""
    say(text)


class Bar(tqdm):
    """A stage's progress bar, starting at `done` of `total`."""

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
            position=0,  # tqdm would place it below a finished bar that is still referenced
        )

    @staticmethod
    def status_printer(file):
        if file.isatty():
            return tqdm.status_printer(file)
        return lambda text: print(text, file=file, flush=True)

    def close(self) -> None:
        if not self.disable and not sys.stderr.isatty():
            self.refresh()
            self.disable = True  # the line has ended; tqdm would print it again
        super().close()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and advance the bar after each."""
        for item in items:
            yield item
            self.update()

    def note(self, text: str) -> None:
        """Show a text after the bar, from the next redraw on."""
        self.set_postfix_str(text, refresh=sys.stderr.isatty())


def close_bars() -> None:
    """Close all open bars, so that an error line comes after them."""
    for bar in list(Bar._instances):
        bar.close()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide transformers' bar and report while a model is loaded."""
    from transformers.utils import logging

    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def quiet_libraries() -> None:
    """Silence library messages that appear in every run; warnings that depend on the run stay."""
    import transformers

    if datasets := sys.modules.get("datasets"):  # evaluation does not load it
        datasets.disable_progress_bars()  # a dozen bars within one second
    transformers.utils.logging.disable_progress_bar()  # one bar per checkpoint
    # DeepSpeed triggers it in every step
    warnings.filterwarnings("ignore", message=".*torch.distributed.* is deprecated", category=FutureWarning)
