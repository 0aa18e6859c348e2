"""The public interface with its signatures, for docs/api.md."""

import inspect
from pkgutil import resolve_name
from typing import Any

PUBLIC = {  # section -> import paths
    "Ranking": (
        "arenarl.rank:rank_group", "arenarl.rank:rank_groups", "arenarl.rank:Ranker", "arenarl.rank:RankedGroup",
        "arenarl:tournament_reward",
    ),
    "The tournament": (
        "arenarl.tournament:run_tournament", "arenarl.tournament:play_tournament",
        "arenarl.tournament.ranking:Ranking", "arenarl.tournament.ranking:Match", "arenarl.tournament.ranking:Call",
        "arenarl.tournament.schedules:Topology",
    ),
    "Judges": (
        "arenarl.judges.judge:Judge", "arenarl.judges.judge:Verdict", "arenarl.judges.view:View",
        "arenarl.judges.judge:make_examiner", "arenarl.judges.factory:make_judge",
    ),
    "Domains and environments": (
        "arenarl.domains.domain:Domain", "arenarl.domains.domain:make_domain",
        "arenarl.rollout.environment:Environment", "arenarl.rollout.environment:Step",
    ),
    "Data": ("arenarl.trajectory:Query", "arenarl.trajectory:Trajectory", "arenarl.trajectory:RolloutGroup"),
    "Configs": ("arenarl.config.load:load_config", "arenarl.config.load:configure"),
}  # fmt: skip


def interface_page() -> str:
    """Return the sections of docs/api.md: each name with its signature, its public methods and a sentence."""
    parts = []
    for section, paths in PUBLIC.items():
        parts.append(f"## {section}")
        parts += [_entry(path.replace(":", "."), resolve_name(path)) for path in paths]
    return "\n\n".join(parts)


def _entry(name: str, thing: Any) -> str:
    lines = [_signature(name, thing)]
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            if attribute.startswith("_"):
                continue
            if isinstance(value, property):
                lines.append(f"    .{attribute}")
            elif inspect.isfunction(getattr(thing, attribute)):
                lines.append(f"    {_signature('.' + attribute, getattr(thing, attribute))}")
    code = "\n".join(lines)
    return f"```python\n{code}\n```\n{_sentence(thing)}"


class _Anything:
    """A default whose text differs between Python versions or runs."""

    def __repr__(self) -> str:
        return "…"


def _signature(name: str, thing: Any) -> str:
    """Return the signature without types: the docstrings describe them."""
    empty, prefix = inspect.Parameter.empty, "async " if inspect.iscoroutinefunction(thing) else ""
    parameters = []
    for parameter in inspect.signature(thing).parameters.values():
        is_plain = isinstance(parameter.default, str | int | float | tuple | None) or parameter.default is empty
        default = parameter.default if is_plain else _Anything()
        parameters.append(parameter.replace(annotation=empty, default=default))
    return f"{prefix}{name}{inspect.Signature(parameters)}"


def _sentence(thing: Any) -> str:
    """Return the docstring's first paragraph in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
