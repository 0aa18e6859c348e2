"""Configs of small builds of training data, and the local server that plays all their LLMs."""

from contextlib import contextmanager

from judge_servers import serving

from arenarl.config.load import load_config
from arenarl.synthesis.server import RoleServer
from arenarl.system.repository import CONFIGS, ROOT

SMALL = (
    "data.test_per_subtask=1", "data.sft_size=8", "data.rl_size=5", "data.baseline_attempts=3",
    "build.near_duplicate=0.95",
)  # fmt: skip


def build_yaml(folder, url, *overrides):
    """Write configs/data/local.yaml with its calls sent to `url`; return the path and the config with overrides."""
    text, path = (CONFIGS / "data" / "local.yaml").read_text(encoding="utf-8"), folder / "build.yaml"
    text = text.replace("http://127.0.0.1:8766/v1", url).replace("data/seeds/", f"{ROOT}/data/seeds/")
    text = text.replace("timeout_s: 10", "timeout_s: 100")  # a loaded machine would send calls twice
    path.write_text(text.replace("../quickstart.yaml", str(CONFIGS / "quickstart.yaml")))
    folders = f"data.folder={folder}/built", f"judge.store={folder}/replies.sqlite"
    return path, load_config(path, [*SMALL, *folders, *overrides])


@contextmanager
def served_build(folder, *overrides, mistakes=0.2, inspector_error=0.1, **faults):
    """Yield (server, YAML, config) of a small build while its server runs."""
    server = RoleServer(load_config(CONFIGS / "data" / "local.yaml"), mistakes, inspector_error, **faults)
    with serving(server.app()) as url:
        yield server, *build_yaml(folder, url, *overrides)
