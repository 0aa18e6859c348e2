"""Read text files, import paths and records that a user names. Unusable input raises a one-line UserError."""

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from arenarl.system.errors import UserError, current_folder, missing_extra

if TYPE_CHECKING:
    from pydantic import ValidationError


class NotText(UserError):
    """Error for a file that is not UTF-8."""


def lines_of(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the file's lines. Raises UserError if the file is missing, a folder or unreadable, and NotText if it is not
    UTF-8."""
    try:
        with path.open(encoding=encoding) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise NotText(f"{path} is not UTF-8 text; save it as UTF-8, or download it again") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder, not a file; name a file") from error
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        where = current_folder(path) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}{where}") from error


def text_of_file(path: Path, encoding: str = "utf-8") -> str:
    """Return the file's text. Raises like `lines_of`."""
    return "".join(lines_of(path, encoding))


def import_named(name: str, key: str, kind: str = "Class") -> Any:
    """Import the object that the config's `key` names as `package.module:Class` (or another kind). Raises UserError."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        if missing := missing_extra(error):
            raise UserError(f"{key}={name}: {missing}") from error
        raise UserError(
            f"{key}: {name} cannot be imported ({error}); name a {kind.lower()} as package.module:{kind} from a module "
            "that is beside the scripts, installed, or on PYTHONPATH"
        ) from error


def first_problem(error: "ValidationError") -> str:
    """Return the location and message of pydantic's first problem as one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    return " ".join([".".join(map(str, first["loc"])), first["msg"]]).strip()
