"""The table of the paper's scale: every row is of a run that could be started."""

import json
from pathlib import Path

from arenarl.config.load import load_config
from arenarl.plan.scale import H20, ROWS, scale_table
from arenarl.plan.stage import Stage

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_fits_the_gpus_that_it_names(monkeypatch):
    monkeypatch.chdir(ROOT)
    for row in ROWS:
        assert row.stage in ("sft", "rl", "evaluate")
        assert (row.gpus > 0) == (row.stage != "evaluate")
        assert Stage(load_config(row.config), row.stage, row.gpus or 1, H20).misfits == [], row


def test_a_row_that_somebody_ran_has_its_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert scale_table(tmp_path).count("not run") == 3 * sum(row.stage != "sft" for row in ROWS)
    figures = dict.fromkeys(("win_rate", "quality", "valid_rate"), {"mean": 61.5, "ci": [60.0, 63.0]})
    folder = tmp_path / load_config(ROWS[1].config).run_name
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"checkpoints": ["rl"], "rl": {"sampled": figures}}))
    assert f"| `{ROWS[1].config}` |" + " 61.5 [60.0, 63.0] |" * 3 in scale_table(tmp_path)
