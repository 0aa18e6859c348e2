"""The tables of the paper's scale: every row is of a run that could be started."""

from pathlib import Path

from arenarl.config.load import load_config
from arenarl.plan.fit import misfits
from arenarl.plan.scale import H20, ROWS, scale_table

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_fits_the_gpus_that_it_names(monkeypatch):
    monkeypatch.chdir(ROOT)
    for row in ROWS:
        assert row.stage in ("sft", "rl", "evaluate") and (row.gpus > 0) == (row.stage != "evaluate")
        assert misfits(load_config(row.config), row.stage, max(row.gpus, 1), H20.memory_gb * 1e9) == [], row


def test_a_row_that_somebody_ran_has_its_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert scale_table(tmp_path).count("not run") == 3 * sum(row.stage != "sft" for row in ROWS)
    figure = '{"mean": 61.5, "ci": [60.0, 63.0]}'
    folder = tmp_path / load_config(ROWS[1].config).run_name
    folder.mkdir()
    figures = ", ".join(f'"{name}": {figure}' for name in ("win_rate", "quality", "valid_rate"))
    (folder / "summary.json").write_text(f'{{"checkpoints": ["rl"], "rl": {{"sampled": {{{figures}}}}}}}')
    assert f"| {ROWS[1].title} | `{ROWS[1].config}` | 61.5 [60.0, 63.0] | 61.5" in scale_table(tmp_path)
