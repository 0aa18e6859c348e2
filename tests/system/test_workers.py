"""Worker processes on machines with other limits; tests/domains/research/test_pages.py has hangs and crashes."""

import io
import pickle
import signal
import sys
from types import SimpleNamespace

import pytest

from arenarl.system import workers


@pytest.mark.parametrize("error", [ValueError("current limit exceeds maximum limit"), OSError(22, "Invalid argument")])
def test_a_worker_works_where_the_system_refuses_to_limit_its_memory(monkeypatch, capsys, error):
    """macOS refuses a limit below the memory that the process has reserved."""

    def refuse(*_):
        raise error

    tasks = io.BytesIO(pickle.dumps((1.0, ([1],))))
    monkeypatch.setattr(workers.resource, "setrlimit", refuse)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["workers", "json:dumps"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=tasks))
    workers.main()
    assert capsys.readouterr().out == '"[1]"\n'
