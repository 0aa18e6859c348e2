import errno
import fcntl

import pytest

from arenarl.rank.files import RankFile
from arenarl.run.stage import lock_folder
from arenarl.system.locks import try_lock


def test_a_locked_file_is_refused_until_it_is_closed(tmp_path):
    with (tmp_path / "a").open("w") as first, (tmp_path / "a").open("w") as second:
        assert [try_lock(first), try_lock(second)] == [True, False]
        first.close()
        assert try_lock(second)


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("write", [lock_folder, lambda folder: RankFile(folder / "ranked.jsonl", "run").close()])
def test_every_command_says_that_a_file_system_has_no_locks(tmp_path, monkeypatch, capsys, write, problem):
    def flock(*_):
        raise OSError(problem, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    write(tmp_path)
    assert "is on a file system without locks; do not start this command twice" in capsys.readouterr().out
