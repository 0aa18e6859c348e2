"""What a user names: text files, import paths, records. What cannot be used is one line that says why."""

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from arenarl.system.errors import UserError

if TYPE_CHECKING:
    from pydantic import ValidationError


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


def named(name: str, key: str, kind: str = "Class") -> Any:
    """Import what the config's `key` names as `package.module:Class`, or as another kind.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{key}: {name} cannot be imported ({error}); name a {kind.lower()} as package.module:{kind}, its module "
            "beside the scripts, installed, or on PYTHONPATH"
        ) from error


def first_problem(error: "ValidationError") -> str:
    """Where pydantic found the first problem, if it lies within, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    return " ".join([".".join(map(str, first["loc"])), first["msg"]]).strip()
