"""What a config names by its import path: judges, environments, domains,
topologies and rewards that are not part of this package."""

from pkgutil import resolve_name
from typing import Any

from arenarl.system.errors import UserError


def named(name: str, key: str, kind: str = "Class") -> Any:
    """What `package.module:Class`, or of another kind, names.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        how = (
            f"name a {kind.lower()} as package.module:{kind}, its module beside the "
            "scripts, installed, or on PYTHONPATH"
        )
        raise UserError(f"{key}: {name} cannot be imported ({error}); {how}") from error
