import os
import sys
from types import SimpleNamespace

import pytest

from arenarl.studies import judge_faults
from arenarl.studies.judge_faults import invented_scores, main
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT


def line(messages, score, fault=None):
    return {"messages": messages, "reply": None if score is None else {"score": score}, "fault": fault}


def test_a_verdict_is_invented_unless_the_server_gave_it_to_the_same_prompt():
    served = [line("a", 1.0), line("a", 2.0, "prose"), line("b", 3.0), line("b", None, "cut")]
    assert invented_scores([line("a", 1.0), line("a", 2.0), line("b", 3.0), line("b", 3.0)], served) == 0
    assert invented_scores([line("a", 3.0), line("b", 5.0), line("c", 1.0)], served) == 3


def test_training_ends_with_a_killed_study_and_its_failure_is_named(tmp_path, monkeypatch):
    """A restart deletes the folder in which an orphan would still write."""
    given = {}
    ended = SimpleNamespace(returncode=3)
    monkeypatch.setattr(judge_faults.subprocess, "run", lambda command, **options: given.update(options) or ended)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="training some ended with exit code 3"):
        judge_faults.train(str(ROOT / "configs/quickstart.yaml"), "some", "quickstart", 2, 1, [])
    assert given["env"]["ARENARL_OWNED"] == str(os.getpid())


@pytest.mark.parametrize(("option", "value"), [("--steps", "0"), ("--faults", "30")])
def test_options_that_cannot_work_are_refused_before_any_work(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["judge_faults", "--config", "configs/quickstart.yaml", option, value])
    with pytest.raises(SystemExit):
        main()
    assert f"argument {option}: " in capsys.readouterr().err
