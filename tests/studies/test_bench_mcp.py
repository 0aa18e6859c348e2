import json

import pytest

pytest.importorskip("mcp", reason="the SDK mcp is not installed: pip install mcp==2.3.0")

from arenarl.studies import bench_mcp  # noqa: E402


@pytest.mark.slow(seconds=5)
def test_calls_that_are_made_at_once_wait_at_once(tmp_path):
    figures = bench_mcp.run(seconds=0.5, repeats=1)
    assert set(figures) == {"http", "stdio", "http_session_each"}
    for name in ("http", "stdio"):
        assert 0.5 <= figures[name]["seconds"][0] < 0.5 * bench_mcp.AT_ONCE / 3 and figures[name]["ms_a_call"] > 0
    assert bench_mcp.mcp_table(tmp_path) == "not run"
    (tmp_path / "bench_mcp.json").write_text(json.dumps(figures | {"calls_at_once": 32, "seconds_a_call": 0.5}))
    assert bench_mcp.mcp_table(tmp_path).count("\n| one") == 3
