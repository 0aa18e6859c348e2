"""Read text files, archives, import paths and records that a user names. Unusable input raises a one-line UserError."""

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from arenarl.system.errors import UserError, current_folder, missing_extra

if TYPE_CHECKING:
    from pydantic import ValidationError


_OLE = b"\xd0\xcf\x11\xe0"  # how old Office files begin, and new ones with a password
_ENCRYPTED = 1  # flag of a zip member


class NotText(UserError):
    """Error for a file that is not UTF-8."""


def lines_of(path: Path, may_be_cut: bool = False) -> Iterator[str]:
    """Yield the file's lines, without the byte order mark with which Windows programs begin a file.

    With `may_be_cut`, a last line that ends inside a character is left out. Raises UserError if the file is missing, a
    folder or unreadable, and NotText if it is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError as error:
        if may_be_cut and error.reason == "unexpected end of data":  # Python's words for the end of the file only
            return
        raise NotText(f"{path} is not UTF-8 text; save it as UTF-8, or download it again") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder, not a file; name a file") from error
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    where = current_folder(path) if isinstance(error, FileNotFoundError) else ""
    return UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}{where}")


def is_stream(path: Path) -> bool:
    """Return True for a pipe or a device, which can be neither read twice nor replaced."""
    return path.exists() and not (path.is_file() or path.is_dir())


def home_path(path: str) -> str:
    """Return the path with a leading ~ or ~user replaced by that user's home folder.
    Raises ValueError for a user without a home folder."""
    if not path.startswith("~"):
        return path
    if (expanded := os.path.expanduser(path)).startswith("~"):
        raise ValueError(f"{path.partition('/')[0]} is not a home folder of this machine; write the path out")
    return expanded


def text_of_file(path: Path) -> str:
    """Return the file's text. Raises like `lines_of`."""
    return "".join(lines_of(path))


def check_zip(path: Path, largest: int) -> None:
    """Raise UserError for a file that is not a zip archive, is encrypted, or unpacks to more than `largest` bytes.

    The stated sizes decide: zipfile never unpacks more of a member than its stated size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            is_ole = file.read(len(_OLE)) == _OLE
        problem = "is encrypted with a password, or in an old format" if is_ole else f"is not a whole archive ({error})"
        how = "save it without a password in the new format" if is_ole else "download it again"
        raise UserError(f"{path} {problem}; {how}") from error
    except (OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from error
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise UserError(f"{path} is encrypted with a password; save it without one")
    if (size := sum(member.file_size for member in members)) > largest:
        raise UserError(f"{path} unpacks to {size:,} bytes, more than {largest:,}; use the official file")


def add_current_folder() -> None:
    """Let Python import modules of the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there replaces an installed module


def import_named(name: str, key: str, kind: str = "Class") -> Any:
    """Import the object that the config's `key` names as `package.module:Class` (or another kind). Raises UserError."""
    add_current_folder()
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        if missing := missing_extra(error):
            raise UserError(f"{key}={name}: {missing}") from error
        raise UserError(
            f"{key}: {name} cannot be imported ({error}); name a {kind.lower()} as package.module:{kind} from a module "
            "that is in the current folder, beside the scripts, installed, or on PYTHONPATH"
        ) from error


def first_problem(error: "ValidationError") -> str:
    """Return the location and message of pydantic's first problem as one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    return " ".join([".".join(map(str, first["loc"])), first["msg"]]).strip()
