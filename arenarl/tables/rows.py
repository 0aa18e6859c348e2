"""Rows of the papers' tables. A file in configs/tables lists them; each row is a run for every seed.

All rows of a seed train from the same SFT policy with the three scripts, so rows are paired over seeds. A row that
several tables have is run once.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from arenarl.config.command_line import as_overrides, command_line
from arenarl.config.load import load, load_config
from arenarl.config.schema import Config
from arenarl.config.value_types import Bool, Float, Line, Name, PositiveInt, Seed, Text
from arenarl.run.settings import settings_of
from arenarl.system.errors import UserError
from arenarl.system.own_code import code_hashes
from arenarl.system.prompt_files import OWN_PROMPT, prompt_hashes
from arenarl.training.requirements import check_method

FOLDER = Path("configs/tables")
TABLES = (
    "table2", "table3", "table3_research", "fig1", "collapse", "fig4a", "fig4c", "ablations", "noise", "noise_strength",
    "tournament_grpo", "recall_bonus", "textcraft", "babyai",
)  # fmt: skip
# Later tables. Each has its own folders and its own family of comparisons: no star of TABLES depends on them.
LATER_TABLES = (
    "table4", "table_methods", "table_rates", "table_research", "turns", "turns_textcraft", "textcraft_depths",
    "babyai_levels", "sciworld", "searchqa", "table_retrievers", "research_without_sft", "table_credit",
    "table_credit_babyai", "table_rankings", "table_gaming", "table_ahead",
)  # fmt: skip
_KEY_OF_MEASURE = {"discrimination": "rl.eval_steps", "onset": "judge.watch_share"}  # 0: there is nothing to measure


@dataclass
class Quick:
    seeds: list[Seed] = field(default_factory=list)
    set: dict[str, JsonValue] = field(default_factory=dict)  # may change any other setting, also of the cold start


@dataclass
class Row:
    """One line of a table. Without a config it has only the paper's figures."""

    label: Line
    config: Text | None = None  # YAML of the run; null: nothing is run
    set: dict[str, JsonValue] = field(default_factory=dict)  # changes of the config, after the whole table's
    checkpoint: Literal["rl", "sft"] = "rl"  # the evaluated policy; with sft, nothing is trained by RL
    policy_of: Name | None = None  # a row whose RL policy is evaluated with this row's settings; null: its own
    paper: list[Float] | None = None  # the paper's figures, in the order of `paper_columns`
    at_scale: Line | None = None  # options of the scripts that run it with a model of 8B parameters
    series: Line | None = None  # in a table with an axis: the line of the figure that has this point ...
    at: Float | None = None  # ... and the point's place on the axis
    panel: Line | None = None  # the panel of the figure that has this point; null: all panels
    # folder of results/ with the evaluation of the table's `real_model`; -seedN is appended for other seeds
    real_run: Name | None = None

    @property
    def is_run(self) -> bool:
        """True if the row is run; False if it has only the paper's figures."""
        return self.config is not None or self.checkpoint == "sft"


@dataclass
class Table:
    title: Line
    cold_start: Text  # config of the SFT policies that all rows start from ...
    reference: Name  # the row with which all other rows are compared
    rows: dict[Name, Row]
    cold_start_set: dict[str, JsonValue] = field(default_factory=dict)  # ... and keys that the cold start changes
    claims: list[Line] = field(default_factory=list)  # claims of the paper that this table tests, with their section
    paper_columns: list[Line] = field(default_factory=list)
    # our figure, subtask or dimension for each paper column; null: none
    our_figures: list[Line | None] = field(default_factory=list)
    seeds: list[Seed] = field(default_factory=list)
    set: dict[str, JsonValue] = field(default_factory=dict)  # keys that all rows change
    quick: Quick = field(default_factory=Quick)
    compare_with_reference: Bool = True  # false: only `comparisons` are made
    comparisons: list[tuple[Name, Name]] = field(default_factory=list)  # further pairs of rows
    # pairs that `claims` are about; all other pairs are secondary
    primary: list[tuple[Name, Name]] = field(default_factory=list)
    curve_steps: list[PositiveInt] = field(default_factory=list)  # steps of the learning curve that the page shows
    curve_panels: dict[Line, list[Name]] = field(default_factory=dict)  # title of a panel -> rows whose curves it has
    figure: Name = "win_rate"  # figure of summary.json by which rows are compared
    axis: Line | None = None  # label of the axis that `at` of the rows belongs to
    # a further measurement of each run. discrimination: studies/signal_and_noise.py; onset: the scores by judge.train
    # and judge.watch, and the step from which judge.train is gamed
    measure: Literal["discrimination", "onset"] | None = None
    # a pretrained model that some rows were also run with, by its own recipe; its figures are a column, one a seed
    real_model: Line | None = None

    @property
    def panels(self) -> list[str | None]:
        """Panels of the figure with an axis, in the order of the rows; [None] if there is a single panel."""
        return list(dict.fromkeys(row.panel for row in self.rows.values() if row.panel)) or [None]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of rows that are compared; a difference is the first row minus the second."""
        others = [name for name, row in self.rows.items() if row.is_run and name != self.reference]
        return [*((name, self.reference) for name in others if self.compare_with_reference), *self.comparisons]


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    table: str
    row: str
    seed: int
    config: str  # the YAML
    loaded: Config  # the config with `options` applied
    start: Config  # config of the SFT that the run starts from
    options: tuple[str, ...]  # command line of the run's scripts, after the script's name
    trained: Config  # config of the RL that made the policy: `loaded`, or with policy_of that of another row
    training: tuple[str, ...]  # command line of that RL; not used if the SFT policy is evaluated
    cold_start: tuple[str, ...]  # command line of the SFT
    checkpoint: str
    figure: str
    measure: str | None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.table, self.row, self.seed

    @property
    def trains(self) -> bool:
        """True if the evaluated policy is made by RL of this row."""
        return self.checkpoint == "rl" and self.trained.run_dir == self.loaded.run_dir

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings that the figures depend on: keys that differ from their defaults, without names of folders.
        Settings of the SFT and of the RL that made the policy are included if they differ from the run's own, and the
        hashes of the user's own code and prompts."""
        settings = dict(_changes(asdict(self.loaded), asdict(Config())))
        for stage, config, prefix in (("sft", self.start, "cold_start"), ("rl", self.trained, "trained")):
            changes = _changes(settings_of(stage, config), settings_of(stage, self.loaded))
            settings |= {f"{prefix}.{key}": value for key, value in changes}
        names = ("name", "results")
        kept = {key: value for key, value in settings.items() if key not in names and not key.startswith("wandb.")}
        code = {name: sha256[:12] for name, sha256 in code_hashes(kept).items()}
        prompts = {OWN_PROMPT + name: sha256 for name, sha256 in prompt_hashes(self.loaded.prompts.folder).items()}
        return kept | code | prompts | {"evaluate.checkpoints": self.checkpoint}


def read_table(name: str, folder: Path = FOLDER) -> Table:
    """Read a table's YAML over its base. Raises UserError for an unknown table or key, and for rows, pairs and figures
    that do not fit together."""
    path = folder / f"{name}.yaml"
    if path not in folder.glob("*.yaml"):
        raise UserError(f"{path} does not exist; choose one of the tables {', '.join((*TABLES, *LATER_TABLES))}")
    table = load(Table, {}, path)
    if problem := next(_problems(table), None):
        raise UserError(f"{path}: {problem}")
    return table


def _problems(table: Table) -> Iterator[str]:
    """Yield the contradictions within a table's YAML."""
    columns = len(table.paper_columns)
    if table.compare_with_reference and table.reference not in table.rows:
        yield f"compares with {table.reference}, but has no row {table.reference}"
    for pair in table.pairs:
        if missing := [row for row in pair if row not in table.rows]:
            yield f"compares {' with '.join(pair)}, but has no row {missing[0]}"
        elif pair[0] == pair[1] or not all(table.rows[row].is_run for row in pair):
            yield f"compares {' with '.join(pair)}; name two different rows that are run"
    for pair in table.primary:
        if frozenset(pair) not in map(frozenset, table.pairs):
            yield f"primary names {' with '.join(pair)}, which are not compared; add them to comparisons"
    for title, rows in table.curve_panels.items():
        if missing := [row for row in rows if row not in table.rows]:
            yield f"curve_panels, {title}: unknown row {missing[0]}"
    for name, row in table.rows.items():
        if row.paper and len(row.paper) != columns:
            yield f"row {name}: paper has {len(row.paper)} figures, paper_columns has {columns}; name as many"
        if (row.series is None) != (row.at is None) or row.at is not None and table.axis is None:
            yield f"row {name}: set both series and at, in a table with an axis, or neither"
        if row.real_run and not table.real_model:
            yield f"row {name} has a real_run, but the table has no real_model; set both or neither"
        if row.policy_of and row.config is None:
            yield f"row {name} has policy_of, but no config, so nothing would be run; name the YAML to evaluate with"
        elif sum(map(bool, (row.policy_of, row.checkpoint == "sft", table.measure))) > 1:
            yield f"row {name} trains nothing: policy_of, checkpoint: sft and measure exclude each other; leave one out"
        elif row.policy_of and not _trains(table.rows.get(row.policy_of)):
            trained = ", ".join(other for other in table.rows if _trains(table.rows[other]))
            yield f"row {name}: policy_of is {row.policy_of}, which trains no policy; name one of {trained}"
    if table.our_figures and len(table.our_figures) != columns:
        yield f"our_figures has {len(table.our_figures)} entries, paper_columns {columns}; name one for each"
    if not table.seeds:
        yield "seeds is empty; list the seeds that every row gets"


def _trains(row: Row | None) -> bool:
    return row is not None and row.config is not None and row.checkpoint == "rl" and row.policy_of is None


def runs_of(
    name: str, table: Table, rows: list[str], seeds: list[int], folder: str = "tables", quick: bool = False
) -> list[Run]:
    """Return a run for each seed and row, seed by seed; without `rows` or `seeds`, for all of the table's.

    The scripts write into `folder` of runs/. Raises UserError for an unknown row, an invalid seed, or a row's config
    that cannot work.
    """
    if unknown := sorted(set(rows) - set(table.rows)):
        raise UserError(f"{name} has no row {', '.join(unknown)}; known: {', '.join(table.rows)}")
    if invalid := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise UserError(f"seed {invalid[0]}: must be from 0 to {2**32 - 1}")
    if idle := [row for row in rows if not table.rows[row].is_run]:
        raise UserError(f"{name}: row {idle[0]} has only the paper's figures; there is nothing to run")
    last = table.quick.set if quick else {}
    # a user's table has its own folders: its rows may have a shipped row's name and other settings
    place = folder if name in TABLES else f"{folder}/{name}"
    cold_start = table.cold_start_set | last
    sft = _load(name, "the cold start", table.cold_start, cold_start)
    chosen = [row for row in table.rows if table.rows[row].is_run and (not rows or row in rows)]
    policy_of = {row: table.rows[row].policy_of or row for row in chosen}
    needed = dict.fromkeys((*chosen, *policy_of.values()))
    configs = {row: table.rows[row].config or table.cold_start for row in needed}
    of_table = table.cold_start_set | table.set
    of_run = {row: {"name": f"{place}/{row}", "rl.init_run": sft.name} for row in configs}
    changes = {row: of_table | table.rows[row].set | last | of_run[row] for row in configs}
    # loaded once for all seeds, because loading is slow
    loaded = {row: _load(name, f"row {row}", config, changes[row]) for row, config in configs.items()}
    for row, config in loaded.items():
        check_method(config)
        if "sampled" not in config.evaluate.decodings:
            raise UserError(f"{name}, row {row}: evaluate.decodings lacks sampled; a table's figures need it")
        if table.measure and not attrgetter(key := _KEY_OF_MEASURE[table.measure])(config):
            raise UserError(f"{name}, row {row}: measure: {table.measure} needs {key} above 0")
    runs = []
    for seed in dict.fromkeys(seeds or (table.quick.seeds if quick else table.seeds)):
        start = command_line(table.cold_start, as_overrides(cold_start | {"seed": seed}))
        sft_of_seed = replace(sft, seed=seed)
        of_seed = {row: replace(config, seed=seed) for row, config in loaded.items()}
        for row in chosen:
            checkpoint, trained = table.rows[row].checkpoint, of_seed[policy_of[row]]
            evaluated = {checkpoint: sft_of_seed.sft_policy if checkpoint == "sft" else str(trained.run_dir / "rl")}
            config = replace(of_seed[row], evaluate=replace(of_seed[row].evaluate, checkpoints=evaluated))
            last_changes = {"seed": seed, "evaluate.checkpoints": evaluated}
            options, training = (
                command_line(configs[each], as_overrides(changes[each] | last_changes))
                for each in (row, policy_of[row])
            )
            parts = (config, sft_of_seed, options, trained, training, start)
            runs.append(Run(name, row, seed, configs[row], *parts, checkpoint, table.figure, table.measure))
    return runs


def _load(name: str, part: str, config: str, changes: dict[str, Any]) -> Config:
    try:
        return load_config(config, as_overrides(changes))
    except UserError as error:
        raise UserError(f"{FOLDER / name}.yaml, {part}: {error}") from error


def new_seeds(name: str, table: Table, seeds: list[int]) -> str:
    """Return a line on the seeds that the table does not list, else "". Such seeds get their own cold start."""
    if not (new := [str(seed) for seed in seeds if seed not in table.seeds]):
        return ""
    how = f"to count it, add it to seeds in {FOLDER / name}.yaml; to stay with the table's, stop and leave --seed out"
    made = "data and SFT are made if runs/ lacks them, and the table does not count such runs"
    return f"{name} has the seeds {', '.join(map(str, table.seeds))}, not {', '.join(new)}: {made}; {how}"


def _changes(settings: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of the settings that differ from the defaults."""
    for name, value in settings.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict) and defaults[name]:
            yield from _changes(value, defaults[name], f"{prefix}{name}.")
        elif name not in defaults or value != defaults[name]:
            yield f"{prefix}{name}", value
