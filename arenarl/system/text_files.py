"""Text files that a user names: what cannot be read is one line that says why."""

from collections.abc import Iterator
from pathlib import Path

from arenarl.system.errors import UserError


class NotText(UserError):
    """A file that is not UTF-8."""


def lines_of(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The file's lines. Raises UserError if it is missing, a folder or unreadable, and NotText."""
    try:
        with path.open(encoding=encoding) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise NotText(f"{path} is not UTF-8 text; save it as UTF-8, or download it again") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder, not a file; name a file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def text_of_file(path: Path, encoding: str = "utf-8") -> str:
    """The whole of it. Raises as `lines_of`."""
    return "".join(lines_of(path, encoding))
