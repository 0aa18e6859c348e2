"""Text search never starts JAX, which would reserve most of a GPU's memory, and leaves a loaded JAX alone."""

import os
import subprocess
import sys

import pytest
from scripts import ROOT


@pytest.mark.parametrize("is_loaded", [True, False])
def test_search_does_not_start_jax(is_loaded, tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*args, **kwargs):\n    raise SystemExit('JAX was started')\n")
    after = f"assert ('jax' in sys.modules) is {is_loaded}; import jax.lax; print(jax.lax.top_k)"
    modules = "arenarl.domains.travel.tools, arenarl.domains.research.search, arenarl.domains.research.passages"
    program = f"import sys; {'import jax.lax; ' * is_loaded}import {modules}; {after}"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "function top_k" in done.stdout, done.stdout + done.stderr
