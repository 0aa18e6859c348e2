"""The report: one self-contained HTML file with a run's figures, tables, evaluated queries and training groups.

`page.html`, `page.css` and the scripts beside this file are put together as they are: no build step, no network, no
framework. The summary is HTML made here; all that a trajectory says stays in compressed blocks (`data.py`) and reaches
the page as text only. The page's own policy (CSP) allows no script but the one whose hash is in it.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from arenarl.config.load import load_config
from arenarl.config.yaml_text import read_yaml
from arenarl.report import summary as tables
from arenarl.report.figures import draw_figures
from arenarl.report.page.data import compressed, evaluated_items, pack, sample_name, training_items
from arenarl.report.summary import DIGITS, PASSES, columns_of, in_words, policies_of, verified_columns
from arenarl.run.settings import other_settings
from arenarl.system.atomic_files import read_json, to_json, write_text
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.trajectory import read_jsonl

HERE = Path(__file__).parent
SCRIPTS = ("dom.js", "store.js", "list.js", "tournament.js", "item.js", "app.js")


def write_page(run_dir: Path, results_dir: Path) -> Path:
    """Draw the run's figures and write results/<run>/report.html from runs/<run>; returns its path.

    Raises:
        UserError: the run has not been evaluated.
    """
    evaluation = run_dir / "evaluate"
    if not (results_dir / "summary.json").is_file() or not (evaluation / "tournaments.jsonl").is_file():
        raise UserError(f"{run_dir} has not been evaluated; run: python evaluate.py --config <its YAML>")
    summary = read_json(results_dir / "summary.json")
    sets, blocks = [], {}
    for one in _sets(run_dir, evaluation, summary):
        rows, blocks[one["key"]] = pack(one.pop("items"))
        sets.append({**one, "rows": rows})
    data = {"index": compressed(to_json({"sets": sets}))}
    data |= {f"{key}-{number}": text for key, texts in blocks.items() for number, text in enumerate(texts)}
    figures = draw_figures([run_dir, *_other_seeds(run_dir)], summary, results_dir / "figures")
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    page = Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        run=escape(summary["run"]),
        facts=_facts(summary),
        tabs="\n    ".join(map(_tab, sets)),
        summary=_summary(summary, figures, evaluation),
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items()),
    )
    path = results_dir / "report.html"
    write_text(path, page)
    return path


def _tab(one: dict[str, Any]) -> str:
    return f'<a href="#{one["key"]}" data-tab="{one["key"]}">{one["title"]} <small>{len(one["rows"])}</small></a>'


def _sets(run_dir: Path, evaluation: Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The two lists of the page. `left` and `right` are the entrants that it shows first."""
    names = next(read_jsonl(evaluation / "tournaments.jsonl"))["entrants"]
    sets = [{"key": "queries", "title": "Queries", "isTraining": False,
             "judge": _label(summary["judge"] == "simulated"), "names": names,
             "left": len(names) - 1, "right": len(names) // 2 if len(names) > 2 else 0,
             "items": evaluated_items(evaluation, names)}]  # fmt: skip
    groups = run_dir / "rl" / "groups.jsonl"
    if groups.is_file():
        config = read_yaml((run_dir / "rl" / "config.yaml").read_text(encoding="utf-8"))
        is_tournament = config["reward"]["name"] == "tournament"
        topology = config["tournament"]["topology"] if is_tournament else config["reward"]["name"]
        size = len(next(read_jsonl(groups))["trajectories"])
        names = [sample_name(g, config["rollout"]["anchor"] and g == 0) for g in range(size)]
        simulated = read_json(run_dir / "rl" / "provenance.json")["judge_is_simulated"]
        sets.append({"key": "training", "title": "Training groups",
                     "isTraining": True, "judge": _label(simulated), "names": names,
                     "left": 0, "right": None, "items": training_items(groups, topology)})  # fmt: skip
    return sets


def _label(is_simulated: bool) -> str:
    return "simulated judge" if is_simulated else "model judge"


def _other_seeds(run_dir: Path) -> list[Path]:
    """Runs that differ in their seed alone; what was made with other settings is left out and said."""
    own, paths = run_dir / "rl" / "config.yaml", sorted(run_dir.parent.glob(f"{run_dir.name}-seed*"))
    seeds = {path: int(seed) for path in paths if (seed := path.name.rpartition("-seed")[2]).isdigit()}
    if not seeds or not own.is_file():
        return list(seeds)
    try:
        config = load_config(own)
    except UserError as error:  # of a version whose keys are not known any more
        say(f"no mean over seeds: {error}")
        return []
    others = {path: other_settings(replace(config, seed=seed), path / "rl") for path, seed in seeds.items()}
    for path, changed in others.items():
        if changed:
            say(f"{path} is left out of the mean over seeds: it was made with other settings ({changed})")
    return [path for path, changed in others.items() if not changed]


def _facts(summary: dict[str, Any]) -> str:
    provenance = summary["provenance"]
    judge = f'<span class="label">{_label(summary["judge"] == "simulated")}</span>'
    return f"seed {summary['seed']} · commit {escape(str(provenance['commit']))} · {judge}"


def _summary(summary: dict[str, Any], figures: dict[str, Path], evaluation: Path) -> str:
    policies = policies_of(summary)
    judge = _label(summary["judge"] == "simulated")
    columns = columns_of(policies)
    verified = verified_columns(summary, columns)
    others = f"{in_words(verified)} rest on {summary['verifier']}'s verdicts; " if verified else ""
    answers = f"{PASSES['accuracy']} by {summary['verifier']}'s verdicts; " if verified else ""
    others += "the reward is of the world; " if "world_reward" in columns else ""
    samples = "Chance that one of k samples beats the stored baseline"
    scaling = {
        f"With fewer turns at test time; win rate by the {judge}.": tables.turns_rows(policies),
        f"{samples} by the {judge}; {answers}the rest is noise-free.": tables.pass_rows(policies),
    }
    results = [
        [name, *(_cell(values.get(figure), DIGITS.get(figure, 1)) for figure in columns)]
        for name, values in policies.items()
    ]

    def win_rates(by: str) -> str:
        keys = list(next(iter(policies.values()))[by])
        rows = [[name, *(_cell(values[by][key]["win_rate"]) for key in keys)] for name, values in policies.items()]
        heads = [key.replace("_", " ") for key in keys] if by == "by_dimension" else keys
        return _table(f"Win rate in percent by the {judge}.", ["", *heads], rows)

    def details(title: str, text: str) -> str:
        return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"

    seconds = ["seconds", *(f"{value:.0f}" for value in summary["seconds"].values())]
    parts = [
        "<h2>Results</h2>",
        _table(
            f"Win rate against {summary.get('reference', 'the stored baseline')}"
            f"{', and score,' if 'score' in columns else ''} by the {judge}; {others}the rest is noise-free. "
            "[95 % over test queries], one seed.",
            ["", *columns.values()],
            results,
        ),
        *(_table(caption, rows[0], rows[1:]) for caption, rows in scaling.items() if rows),
        *(_figure(caption, path) for caption, path in figures.items()),
        "<h2>By subtask</h2>",
        win_rates("by_subtask"),
        "<h2>By dimension of the rubric</h2>",
        win_rates("by_dimension"),
        "<h2>The run</h2>",
        _table("Seconds of each stage.", ["", *summary["seconds"]], [seconds]),
        details("Configuration", (evaluation / "config.yaml").read_text(encoding="utf-8")),
        details("Provenance", json.dumps(summary["provenance"], indent=2)),
    ]
    return "\n".join(parts)


def _cell(figure: dict[str, Any] | None, digits: int = 1) -> str:
    if figure is None or figure["mean"] is None:
        return "–"
    mean, (low, high) = f"{figure['mean']:.{digits}f}", figure["ci"]
    return mean if low is None else f'{mean}<span class="interval">[{low:.{digits}f}, {high:.{digits}f}]</span>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Heads and the first cell of each row are text, the other cells HTML."""
    head = "".join(f'<th scope="col" class="number">{escape(text)}</th>' for text in heads)
    body = ""
    for name, *cells in rows:
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        body += f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>'
    return (
        f'<p class="caption">{escape(caption)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figure(caption: str, path: Path) -> str:
    """The SVG as an image: its ids and fonts stay its own."""
    image = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{image}'
        f'"><figcaption>{escape(caption)}</figcaption></figure>'
    )
