"""Rows of the papers' tables: a file of configs/tables lists them, each a run for every seed.

Every row trains from the same SFT policy of its seed with the three scripts, so that rows are paired over seeds. A row
that several tables have is run once.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from arenarl.config.command_line import as_overrides, command_line
from arenarl.config.load import load, load_config
from arenarl.config.schema import Config
from arenarl.config.value_types import Bool, Float, Line, Name, PositiveInt, Seed, Text
from arenarl.run.settings import settings_of
from arenarl.system.errors import UserError
from arenarl.training.requirements import check_method

FOLDER = Path("configs/tables")
TABLES = (
    "table2", "table3", "table3_research", "fig1", "collapse", "fig4a", "fig4c", "ablations", "noise", "noise_strength",
    "tournament_grpo", "textcraft", "babyai",
)  # fmt: skip


@dataclass
class Quick:
    seeds: list[Seed] = field(default_factory=list)
    set: dict[str, JsonValue] = field(default_factory=dict)  # comes last, for the cold start too


@dataclass
class Row:
    """One line of a table; without a config it has only the paper's figures."""

    label: Line
    config: Text | None = None  # of the run; null: nothing is run here
    # keys that it changes in its config, after those of the whole table
    set: dict[str, JsonValue] = field(default_factory=dict)
    checkpoint: Literal["rl", "sft"] = "rl"  # what is evaluated; sft trains nothing
    paper: list[Float] | None = None  # its figures in the paper, under `paper_columns`
    at_scale: Line | None = None  # options of the scripts that run it with a model of 8B parameters
    series: Line | None = None  # in a table with an axis: the line of the figure that it is a point of ...
    at: Float | None = None  # ... and where on the axis
    panel: Line | None = None  # of the figure that the point is in; null: in every one
    # folder of results/ where a run with the table's `real_model` is evaluated, its other seeds with -seedN
    real_run: Name | None = None

    @property
    def is_run(self) -> bool:
        """Whether there is anything to run here: a row of a closed model has only the paper's figures."""
        return self.config is not None or self.checkpoint == "sft"


@dataclass
class Table:
    title: Line
    cold_start: Text  # config of the SFT policies that all rows start from ...
    reference: Name  # the row that all others are compared with ...
    rows: dict[Name, Row]
    cold_start_set: dict[str, JsonValue] = field(default_factory=dict)  # ... and keys that the cold start changes
    # the paper's, that this table puts to the test, with their section
    claims: list[Line] = field(default_factory=list)
    paper_columns: list[Line] = field(default_factory=list)
    # our figure, subtask or dimension for each paper column; null: none
    our_figures: list[Line | None] = field(default_factory=list)
    seeds: list[Seed] = field(default_factory=list)
    set: dict[str, JsonValue] = field(default_factory=dict)  # keys that all rows change
    quick: Quick = field(default_factory=Quick)
    compare_with_reference: Bool = True  # ... or none, and only the pairs below are compared
    comparisons: list[tuple[Name, Name]] = field(default_factory=list)  # further pairs of rows
    # of all these pairs, those that `claims` name; the others are secondary
    primary: list[tuple[Name, Name]] = field(default_factory=list)
    # steps at which the learning curve is part of the table
    curve_steps: list[PositiveInt] = field(default_factory=list)
    figure: Name = "win_rate"  # of summary.json: by it rows are compared
    axis: Line | None = None  # what `at` of the rows is: the figure and true quality are drawn against it
    measure: Literal["discrimination"] | None = None  # what else is measured of each run: studies/signal_and_noise.py
    # a pretrained model that some rows were run with too, by its own recipe: a column of its figures by seed
    real_model: Line | None = None

    @property
    def panels(self) -> list[str | None]:
        """Of the figure against the axis, in the order of the rows."""
        return list(dict.fromkeys(row.panel for row in self.rows.values() if row.panel)) or [None]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The rows that are compared, each with the one that it is compared to."""
        runs = [name for name, row in self.rows.items() if row.is_run]
        against = (
            [(name, self.reference) for name in runs if name != self.reference] if self.compare_with_reference else []
        )
        return [*against, *self.comparisons]


@dataclass(frozen=True)
class Run:
    """One row with one seed: what is trained and evaluated."""

    table: str
    row: str
    seed: int
    config: str  # its YAML
    loaded: Config  # what that and `options` come to
    start: Config  # of the SFT that it starts from
    options: tuple[str, ...]  # the command line of its stages, after the script's name
    cold_start: tuple[str, ...]  # that of the SFT
    checkpoint: str
    figure: str
    measure: str | None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.table, self.row, self.seed

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that its figures depend on, as keys that differ from their defaults; what folders are called is left out.

        Keys of the SFT that it starts from are there where they are not its own.
        """
        settings = dict(_changed(asdict(self.loaded), asdict(Config())))
        settings |= {
            f"cold_start.{key}": value
            for key, value in _changed(settings_of("sft", self.start), settings_of("sft", self.loaded))
        }
        return {
            key: value
            for key, value in settings.items()
            if key not in ("name", "results") and not key.startswith("wandb.")
        } | {"evaluate.checkpoints": self.checkpoint}


def read_table(name: str, folder: Path = FOLDER) -> Table:
    """A table's YAML over its base.

    Raises:
        UserError: no such table, an unknown key, or rows, pairs and figures that do not fit together.
    """
    path = folder / f"{name}.yaml"
    if path not in folder.glob("*.yaml"):
        raise UserError(f"there is no table {name} in {folder}; known: {', '.join(TABLES)}")
    table = load(Table, {}, path)
    if problem := next(_problems(table), None):
        raise UserError(f"{path}: {problem}")
    return table


def _problems(table: Table) -> Iterator[str]:
    """What does not fit together in a table's YAML."""
    columns = len(table.paper_columns)
    if table.compare_with_reference and table.reference not in table.rows:
        yield f"compares with {table.reference}, but has no row {table.reference}"
    for pair in table.pairs:
        if missing := [row for row in pair if row not in table.rows]:
            yield f"compares {' with '.join(pair)}, but has no row {missing[0]}"
        elif pair[0] == pair[1] or not all(table.rows[row].is_run for row in pair):
            yield f"compares {' with '.join(pair)}; both must be run, and differ"
    for pair in table.primary:
        if frozenset(pair) not in map(frozenset, table.pairs):
            yield f"primary names {' with '.join(pair)}, which are not compared; add them to comparisons"
    for name, row in table.rows.items():
        if row.paper and len(row.paper) != columns:
            yield f"row {name} has {len(row.paper)} figures of the paper's, paper_columns {columns}"
        if (row.series is None) != (row.at is None) or row.at is not None and table.axis is None:
            yield f"row {name} needs both series and at, in a table with an axis, or neither"
        if row.real_run and not table.real_model:
            yield f"row {name} has a real_run, but the table names no real_model"
    if table.our_figures and len(table.our_figures) != columns:
        yield f"our_figures has {len(table.our_figures)} entries, paper_columns {columns}; name one for each"
    if not table.seeds:
        yield "seeds: is empty; name those that each row is to have"


def runs_of(
    name: str, table: Table, rows: list[str], seeds: list[int], folder: str = "tables", quick: bool = False
) -> list[Run]:
    """A run for each seed and row, all rows of a seed in a row; `folder` lies in runs/ and takes what they write.

    Raises:
        UserError: a row that the table does not have, a seed that is none, or a row's config that cannot work.
    """
    if unknown := sorted(set(rows) - set(table.rows)):
        raise UserError(f"{name} has no row {', '.join(unknown)}; known: {', '.join(table.rows)}")
    if odd := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise UserError(f"seed {odd[0]}: must be from 0 to {2**32 - 1}")
    if idle := [row for row in rows if not table.rows[row].is_run]:
        raise UserError(f"{name}: row {idle[0]} has only the paper's figures; there is nothing to run")
    last = table.quick.set if quick else {}
    # a row of one's own may be called as one of these and have other settings
    place = folder if name in TABLES else f"{folder}/{name}"
    cold_start = table.cold_start_set | last
    sft = load_config(table.cold_start, as_overrides(cold_start))
    chosen = [row for row in table.rows if table.rows[row].is_run and (not rows or row in rows)]
    configs = {row: table.rows[row].config or table.cold_start for row in chosen}
    own = table.cold_start_set | table.set
    of_run = {"results": "runs", "rl.init_run": sft.name}
    changes = {row: own | table.rows[row].set | last | {"name": f"{place}/{row}"} | of_run for row in chosen}
    # once for all seeds: it takes a while
    loaded = {row: load_config(config, as_overrides(changes[row])) for row, config in configs.items()}
    for config in loaded.values():
        check_method(config)
    if greedy := [row for row, config in loaded.items() if "sampled" not in config.evaluate.decodings]:
        raise UserError(f"{name}, row {greedy[0]}: evaluate.decodings lacks sampled, of which a table's figures are")
    runs = []
    for seed in seeds or (table.quick.seeds if quick else table.seeds):
        start = command_line(table.cold_start, as_overrides(cold_start | {"seed": seed}))
        sft_of_seed = replace(sft, seed=seed)
        for row, config in configs.items():
            checkpoint, of_seed = table.rows[row].checkpoint, replace(loaded[row], seed=seed)
            evaluated = {checkpoint: sft_of_seed.sft_policy if checkpoint == "sft" else str(of_seed.run_dir / "rl")}
            of_seed = replace(of_seed, evaluate=replace(of_seed.evaluate, checkpoints=evaluated))
            sets = as_overrides(changes[row] | {"seed": seed, "evaluate.checkpoints": evaluated})
            made = (of_seed, sft_of_seed, command_line(config, sets), start)
            runs.append(Run(name, row, seed, config, *made, checkpoint, table.figure, table.measure))
    return runs


def _changed(settings: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of what differs."""
    for name, value in settings.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict) and defaults[name]:
            yield from _changed(value, defaults[name], f"{prefix}{name}.")
        elif name not in defaults or value != defaults[name]:
            yield f"{prefix}{name}", value
