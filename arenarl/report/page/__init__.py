"""The report: one self-contained HTML file with a run's figures, tables, evaluated queries and training groups.

The page consists of `page.html`, `page.css` and the scripts beside this file, without a build step, network access or a
framework. The summary is HTML made here. Text from trajectories stays in compressed blocks (`data.py`) and is inserted
as text only. The page's Content Security Policy allows no script but its own, by hash.
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
from arenarl.report.page.data import (
    compress,
    evaluated_items,
    pack,
    read_evaluated_lines,
    sample_name,
    training_items,
)
from arenarl.report.summary import (
    PASSES,
    baseline_name,
    columns_of,
    format_figure,
    in_words,
    judge_label,
    pass_rows,
    policies_of,
    policy_rows,
    turns_rows,
    verified_columns,
)
from arenarl.run.settings import other_settings
from arenarl.system.atomic_files import read_json, to_json, write_text
from arenarl.system.errors import EVALUATE_AGAIN, UserError, current_folder, one_line
from arenarl.system.progress import say
from arenarl.system.user_input import text_of_file
from arenarl.system.yaml_text import read_yaml
from arenarl.trajectory import read_steps

HERE = Path(__file__).parent
_KEYS = {"run", "seed", "judge", "seconds", "checkpoints", "provenance"}  # of a summary
SCRIPTS = ("dom.js", "store.js", "list.js", "tournament.js", "item.js", "app.js")


def write_page(run_dir: Path, results_dir: Path) -> Path:
    """Draw the run's figures and write report.html from runs/<run>; return its path.
    Raises UserError if the run has not been evaluated."""
    from arenarl.report.figures import draw_figures  # imported late: pages without figures do without matplotlib

    evaluation, summary = run_dir / "evaluate", read_evaluated(run_dir, results_dir)
    try:
        config = text_of_file(evaluation / "config.yaml")
    except UserError as error:
        raise UserError(f"{error}; {EVALUATE_AGAIN}") from error
    sets = _sets(run_dir, evaluation, summary)
    figures = draw_figures([run_dir, *_other_seeds(run_dir)], summary, results_dir / "figures")
    path = results_dir / "report.html"
    write_text(path, render(summary["run"], _facts(summary), _summary(summary, figures, config), sets))
    return path


def read_evaluated(run_dir: Path, results_dir: Path) -> dict[str, Any]:
    """Return the summary of a run.
    Raises UserError if the run has not been evaluated, or was evaluated by an earlier version."""
    summary = read_json(results_dir / "summary.json", dict[str, Any], "rerun evaluate.py")
    if summary is None or not (run_dir / "evaluate" / "tournaments.jsonl").is_file():
        how = f"run: python evaluate.py --config <its YAML>{current_folder(run_dir)}"
        raise UserError(f"{run_dir} has not been evaluated; {how}")
    if not (_KEYS <= summary.keys() and "judge_is_simulated" in summary["provenance"]):
        raise UserError(f"{results_dir / 'summary.json'} was written by an earlier version; {EVALUATE_AGAIN}")
    return summary


def render(title: str, facts: str, summary: str, sets: Sequence[dict[str, Any]]) -> str:
    """Return the page. `facts` and `summary` are HTML; each set has the keys that `_sets` gives it."""
    blocks, tabs = {}, []
    for item_set in sets:
        key = item_set["key"]
        item_set["rows"], blocks[key] = pack(item_set.pop("items"))
        count = len(item_set["rows"])
        tabs.append(f'<a href="#{key}" data-tab="{key}">{item_set["title"]} <small>{count}</small></a>')
    data = {"index": compress(to_json({"sets": sets}))}
    data |= {f"{key}-{number}": text for key, texts in blocks.items() for number, text in enumerate(texts)}
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        run=escape(title),
        facts=facts,
        tabs="\n    ".join(tabs),
        summary=summary,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items()),
    )


def _sets(run_dir: Path, evaluation: Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the page's one or two lists of items. `left` and `right` are the entrants that are shown at the start."""
    names = read_evaluated_lines(evaluation / "tournaments.jsonl", {"entrants"})[0]["entrants"]
    sets = [{"key": "queries", "title": "Queries", "isTraining": False,
             "judge": judge_label(summary["judge"] == "simulated"), "names": names,
             "left": len(names) - 1, "right": len(names) // 2 if len(names) > 2 else 0,
             "items": evaluated_items(evaluation, names)}]  # fmt: skip
    groups = run_dir / "rl" / "groups.jsonl"
    if groups.is_file() and (first := next(read_steps(groups), None)):
        config = _stored_config(run_dir / "rl" / "config.yaml")
        is_tournament = config["reward"]["name"] == "tournament"
        topology = config["tournament"]["topology"] if is_tournament else config["reward"]["name"]
        size = len(first.get("trajectories", ()))  # `training_items` refuses a record without any
        names = [sample_name(g, config["rollout"]["anchor"] and g == 0) for g in range(size)]
        simulated = summary["provenance"]["judge_is_simulated"]
        sets.append({"key": "training", "title": "Training groups",
                     "isTraining": True, "value": "reward", "judge": judge_label(simulated), "names": names,
                     "left": 0, "right": None, "items": training_items(groups, topology)})  # fmt: skip
    return sets


def _stored_config(path: Path) -> dict[str, Any]:
    """Return a stage's resolved config as plain values, also of a version with other keys.
    Raises UserError if the file is missing or damaged."""
    try:
        config = read_yaml(text_of_file(path))
        return {section: config[section] for section in ("reward", "tournament", "rollout")}
    except (UserError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); restore it, or rerun its stage") from error


def _other_seeds(run_dir: Path) -> list[Path]:
    """Return the folders of runs that differ only in their seed. Print the runs that also differ in other settings."""
    own, paths = run_dir / "rl" / "config.yaml", sorted(run_dir.parent.glob(f"{run_dir.name}-seed*"))
    seeds = {path: int(seed) for path in paths if (seed := path.name.rpartition("-seed")[2]).isdecimal()}
    if not seeds or not own.is_file():
        return list(seeds)
    try:
        config = load_config(own)
    except UserError as error:  # written by a version with other keys
        say(f"no mean over seeds: {error}")
        return []
    others = {path: other_settings(replace(config, seed=seed), path / "rl") for path, seed in seeds.items()}
    for path, changed in others.items():
        if changed:
            say(f"{path} is left out of the mean over seeds because its settings differ ({changed})")
    return [path for path, changed in others.items() if not changed]


def _facts(summary: dict[str, Any]) -> str:
    provenance = summary["provenance"]
    judge = f'<span class="label">{judge_label(summary["judge"] == "simulated")}</span>'
    commit = f"commit {escape(provenance['commit'])}" if provenance["commit"] else "no commit"
    return f"seed {summary['seed']} · {commit} · {judge}"


def _summary(summary: dict[str, Any], figures: dict[str, Path], config: str) -> str:
    policies, judge = policies_of(summary), judge_label(summary["judge"] == "simulated")
    columns = columns_of(policies)
    verified = verified_columns(summary, columns)
    others = [f"{in_words(verified)} rest on {summary['verifier']}'s verdicts"] if verified else []
    others += ["the reward comes from the environment"] if "world_reward" in columns else []
    answers = [f"{PASSES['accuracy']} by {summary['verifier']}'s verdicts"] if verified else []
    # only a truth has no noise
    rest = ["the rest is noise-free"] if any("quality" in values for values in policies.values()) else []

    def by_judge(figures: str, exceptions: list[str]) -> str:
        return "; ".join([f"{figures} by the {judge}", *exceptions, *rest]) + "."

    samples = by_judge(f"Chance that at least one of k samples beats {baseline_name(summary)}", answers)
    scaling = {
        f"With fewer turns at test time; win rate by the {judge}.": turns_rows(policies),
        samples: pass_rows(policies),
    }
    head, *results = policy_rows(policies, _cell)

    def win_rates(by: str) -> str:
        keys = list(next(iter(policies.values()))[by])
        rows = [
            [name, *(_cell(values[by][key]["win_rate"], cases=0) for key in keys)] for name, values in policies.items()
        ]
        heads = [key.replace("_", " ") for key in keys] if by == "by_dimension" else keys
        return html_table(f"Win rate in percent by the {judge}.", ["", *heads], rows)

    def details(title: str, text: str) -> str:
        return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"

    seconds = ["seconds", *(f"{value:.0f}" for value in summary["seconds"].values())]
    win_rate = f"Win rate against {baseline_name(summary)}{', and score,' if 'score' in columns else ''}"
    caption = f"{by_judge(win_rate, others)} [95 % over test queries], one seed."
    parts = [
        "<h2>Results</h2>",
        html_table(caption, head, results),
        *(html_table(caption, rows[0], rows[1:]) for caption, rows in scaling.items() if rows),
        *(embedded_figure(caption, path) for caption, path in figures.items()),
        "<h2>By subtask</h2>",
        win_rates("by_subtask"),
        "<h2>By dimension of the rubric</h2>",
        win_rates("by_dimension"),
        "<h2>The run</h2>",
        html_table("Seconds of each stage.", ["", *summary["seconds"]], [seconds]),
        details("Configuration", config),
        details("Provenance", json.dumps(summary["provenance"], indent=2)),
    ]
    return "\n".join(parts)


def _cell(figure: dict[str, Any] | None, digits: int = 1, cases: int | None = None) -> str:
    return cell_of(format_figure(figure, digits, cases))


def cell_of(text: str) -> str:
    """Return a formatted figure as HTML, with its interval in a lighter style."""
    mean, _, interval = text.partition(" ")
    return f'{mean}<span class="interval">{interval}</span>' if interval else mean


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; heads and the first cell of each row are text, the other cells HTML."""
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


def embedded_figure(caption: str, path: Path) -> str:
    """Embed the SVG as an image, so its ids and fonts do not affect the page."""
    image = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{image}'
        f'"><figcaption>{escape(caption)}</figcaption></figure>'
    )
