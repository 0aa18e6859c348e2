"""The watching judge: it detects reward hacking, and its results and errors never change rewards or training."""

import asyncio
import json
import threading

import pytest
from groups import METHODS, attempt, config_of, truth_of
from judge_servers import Script, client_of, judge_of, serving
from parts import arena_of, domain_of, examiner_of, verdict_of

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.local_server import free_port
from arenarl.judges.own import OwnJudge
from arenarl.report.watching import watch_lines, watch_summary, watched_points
from arenarl.system.errors import UserError
from arenarl.training import watching
from arenarl.training.watching import Watcher, make_watcher
from arenarl.trajectory import Query, RolloutGroup, read_jsonl

TRUE = JudgeConfig(noise="none")
PAYS_FOR_LENGTH = JudgeConfig(
    sigma_independent=0.0, sigma_call=0.0, sigma_sticky=0.0, position_bias=0.0, length_bias=2.5, rounding=1e-3
)


@pytest.fixture(autouse=True)
def long_grace(monkeypatch):
    """Wait long for scores, so that a loaded machine does not make them late."""
    monkeypatch.setattr(watching, "GRACE_S", 60.0)


def queries_of(count):
    return [Query(f"q{index}", "travel", "Search", "en", f"Find cafe number {index}.") for index in range(count)]


def padded(quality, characters):
    """A trajectory whose answer states its quality in this number of characters."""
    trajectory = attempt(f"{quality:.1f}".ljust(characters, "0"))
    trajectory.meta["policy_tokens"] = characters
    return trajectory


def groups_of(*qualities, count=2):
    return [RolloutGroup(query, [attempt(quality) for quality in qualities]) for query in queries_of(count)]


def judged(arena, watcher, step, groups):
    """Judge a step as the trainer does; return outcomes and watch metrics."""
    judging = arena.begin([group.query for group in groups], len(groups[0].trajectories))
    if watcher:
        watcher.begin(step, judging.groups)
    for incoming, group in zip(judging.groups, groups, strict=True):
        for row, trajectory in enumerate(group.trajectories):
            incoming.hand_over(row, trajectory)
    outcomes = judging.outcomes()
    return outcomes, watcher.look(step, judging.groups, outcomes) if watcher else {}


def embedded(config=TRUE):
    return EmbeddedJudge(config, truth_of, 0)


def watcher_of(folder, judge=None, share=1.0, seed=0, client=None):
    return Watcher(judge or embedded(), share, seed, folder / "watch.jsonl", client)


class Waiting:
    """A judge that scores after `may_score` is set."""

    def __init__(self):
        self.may_score = threading.Event()

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        await asyncio.to_thread(self.may_score.wait, 60)
        return verdict_of(float(trajectory.answer))


@pytest.mark.parametrize("method", ["tournament", "pointwise_trajectory"])
def test_watching_reveals_a_training_judge_that_rewards_length(tmp_path, monkeypatch, method):
    """Answers grow, the worst answers most, and their quality stays the same."""
    config = load_config("configs/quickstart.yaml", ["name=pleased", "judge.watch.noise=none", "judge.watch_share=1"])
    monkeypatch.chdir(tmp_path)
    watcher = Watcher(embedded(), 1.0, 0, config.run_dir / "rl" / "watch.jsonl")
    arena = arena_of(config_of(method, "round_robin"), embedded(PAYS_FOR_LENGTH))
    steps = []
    for step in range(8):
        trajectories = [padded(4.0 - row, 90 + step * (20 + 30 * row)) for row in range(4)]
        groups = [RolloutGroup(query, trajectories) for query in queries_of(2)]
        steps.append(judged(arena, watcher, step, groups)[1])
    for metrics in steps:
        assert metrics["watch/score"] == pytest.approx([3.2, 2.4, 1.6, 0.8] * 2)
    training = [sum(metrics["watch/training_score"]) / 8 for metrics in steps]
    assert training == sorted(training) and training[-1] > training[0] + 1.5
    assert sum(steps[0]["watch/difference"]) == pytest.approx(0, abs=0.05)
    assert steps[0]["watch/agreement"] == [1.0, 1.0] and max(steps[-1]["watch/agreement"]) < 0
    summary = watch_summary(config)
    assert summary["judge"] == "simulated" and summary["groups"] == 16 and summary["failed"] == 0
    assert summary["watching"]["first"] == summary["watching"]["last"] == pytest.approx(2.0)
    assert len(watch_lines(summary)) == 2  # the second line is the warning
    assert [len(values) for values in watched_points(config.run_dir / "rl").values()] == [16] * 3


def test_equal_rises_of_both_judges_give_no_warning():
    rise = {"first": 3.0, "last": 5.0, "ci": [1.0, 3.0]}
    summary = {"judge": "m", "groups": 40, "calls": 160, "failed": 0, "training": rise, "watching": rise}
    assert len(watch_lines(summary)) == 1
    assert "too few groups to compare" in watch_lines({"judge": "m", "groups": 3, "calls": 12, "failed": 0})[0]


@pytest.mark.parametrize(("method", "topology"), METHODS)
def test_watching_changes_no_reward(tmp_path, method, topology):
    groups = groups_of(3.0, 8.0, 5.0, 1.0)
    unwatched, _ = judged(arena_of(config_of(method, topology), embedded(PAYS_FOR_LENGTH)), None, 0, groups)
    watcher = watcher_of(tmp_path, embedded(JudgeConfig(length_bias=-50)))
    watched, metrics = judged(arena_of(config_of(method, topology), embedded(PAYS_FOR_LENGTH)), watcher, 0, groups)
    assert [outcome.rewards_G for outcome in watched] == [outcome.rewards_G for outcome in unwatched]
    assert len(metrics["watch/score"]) == len(metrics["watch/training_score"]) == 8


def test_only_valid_trajectories_are_scored_and_errors_and_invalid_replies_are_missing_verdicts(tmp_path):
    watcher, arena = watcher_of(tmp_path), arena_of(config_of("tournament"), embedded())
    trajectories = [attempt(2.0), attempt(3.0, "max_turns"), attempt(4.0, "tool_crash"), attempt(6.0)]
    _, metrics = judged(arena, watcher, 0, [RolloutGroup(queries_of(1)[0], trajectories)])
    assert metrics["watch/score"] == pytest.approx([1.6, 4.8]) and metrics["watch/failure_rate"] == [0.0, 0.0]
    (record,) = read_jsonl(tmp_path / "watch.jsonl")
    assert record["scores"] == [pytest.approx(1.6), None, None, pytest.approx(4.8)] and record["calls"] == 2
    assert record["agreement"] == 1.0

    class Broken:
        async def score(self, query, trajectory, answer_only=False, repeat=0):
            if trajectory.answer == "1.0":
                raise RuntimeError("broken")
            return "nonsense"

    watcher = watcher_of(tmp_path, OwnJudge(Broken(), "Broken"))
    outcomes, metrics = judged(arena, watcher, 0, groups_of(1.0, 2.0))
    assert metrics["watch/failure_rate"] == [1.0] * 4 and metrics["watch/score"] == []
    assert outcomes[0].rewards_G == [0.0, 1.0]


def test_the_watched_groups_depend_on_the_seed_only(tmp_path):
    pairs = [(step, query.query_id) for step in range(50) for query in queries_of(8)]

    def watched(seed, share):
        watcher = watcher_of(tmp_path, share=share, seed=seed)
        return {pair for pair in pairs if watcher.watches(*pair)}

    quarter = watched(0, 0.25)
    assert quarter == watched(0, 0.25) != watched(1, 0.25) and 60 < len(quarter) < 140
    assert quarter < watched(0, 0.5) and len(watched(0, 1.0)) == 400


def test_a_resumed_run_replaces_the_lines_of_repeated_steps(tmp_path):
    arena = arena_of(config_of("tournament"), embedded())
    for steps in (range(4), range(2, 5)):
        watcher = watcher_of(tmp_path, share=0.5)
        for step in steps:
            judged(arena, watcher, step, groups_of(1.0, 2.0, count=6))
    pairs = [(step, query.query_id) for step in range(5) for query in queries_of(6)]
    lines = [(record["step"], record["query_id"]) for record in read_jsonl(tmp_path / "watch.jsonl")]
    assert lines == [pair for pair in pairs if watcher.watches(*pair)]


def test_a_slow_judge_delays_no_step_and_late_scores_keep_their_step(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "GRACE_S", 0.01)
    judge, arena = Waiting(), arena_of(config_of("tournament"), embedded())
    watcher = watcher_of(tmp_path, judge)
    metrics = [judged(arena, watcher, step, groups_of(1.0, 2.0))[1] for step in range(3)]
    assert not any(values for of_step in metrics for values in of_step.values())
    judge.may_score.set()
    monkeypatch.setattr(watching, "GRACE_S", 60.0)
    watcher.close()
    assert [record["step"] for record in read_jsonl(tmp_path / "watch.jsonl")] == [0, 0, 1, 1, 2, 2]


def test_scores_ten_steps_late_are_dropped_and_count_as_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watching, "GRACE_S", 0.01)
    judge, arena = Waiting(), arena_of(config_of("tournament"), embedded())
    watcher = watcher_of(tmp_path, judge)
    metrics = [judged(arena, watcher, step, groups_of(1.0, 2.0))[1] for step in range(watching.LATE_STEPS + 2)]
    assert metrics[-2]["watch/failure_rate"] == [] and metrics[-1]["watch/failure_rate"] == [1.0] * 4
    watcher.close()
    words = f"judge.watch: {2 * (watching.LATE_STEPS + 1)} groups have no scores; training ends"
    assert words in capsys.readouterr().err
    judge.may_score.set()


@pytest.mark.parametrize("server", ["down", "refusing", "talking nonsense"])
def test_a_failing_server_stops_the_watching_but_not_the_training(tmp_path, capsys, server):
    script = Script((401, "no", {})) if server == "refusing" else Script("nonsense")
    with serving(script.app) as url:
        client = client_of(tmp_path, max_failure_share=0.2)
        address = f"http://127.0.0.1:{free_port()}/v1" if server == "down" else url
        watcher = watcher_of(tmp_path, judge_of(address, client, patience_s=0.3), client=client)
        arena = arena_of(config_of("tournament"), embedded())
        for step in range(2):
            outcomes, metrics = judged(arena, watcher, step, groups_of(*map(float, range(8)), count=4))
            assert set(metrics["watch/failure_rate"]) == {1.0} and len(metrics["watch/failure_rate"]) == 32
            assert outcomes[0].rewards_G == pytest.approx([row / 7 for row in range(8)])
    (line,) = capsys.readouterr().err.splitlines()
    assert "judge.watch has stopped, training continues without it: " in line


def test_calls_count_towards_the_budget_and_replies_are_stored(tmp_path, capsys):
    reply = json.dumps({"agent_1": dict.fromkeys(PATH_DIMENSIONS + ANSWER_DIMENSIONS, 5)})
    with serving(Script(reply).app) as url:
        client, rest = client_of(tmp_path, stage="run/rl", max_calls=6), client_of(tmp_path, stage="run/evaluate")
        watcher = watcher_of(tmp_path, judge_of(url, client), client=client)
        arena = arena_of(config_of("tournament"), embedded())
        paid, failed = [], []
        for step, qualities in enumerate([(1.0, 2.0), (1.0, 2.0), (3.0, 4.0)]):
            metrics = judged(arena, watcher, step, groups_of(*qualities))[1]
            paid += metrics["watch/paid_calls"]
            failed.append(sum(metrics["watch/failure_rate"]))
        assert paid == [4.0, 0.0, 2.0] and failed == [0, 0, 2]
        assert rest.take_usage()[1].calls == 6
    assert "judge.max_calls=6 is used up" in capsys.readouterr().err


def test_a_share_of_0_makes_no_watcher_and_a_judge_without_a_share_is_refused(tmp_path):
    config = Config()
    threads = threading.active_count()
    assert make_watcher(config, domain_of(config), examiner_of(config), tmp_path) is None
    assert threading.active_count() <= threads
    with pytest.raises(UserError, match="judge.watch would score no groups; set judge.watch_share"):
        load_config("configs/quickstart.yaml", ["judge.watch.base=configs/judges/qwen3_max.yaml"])
    with pytest.raises(UserError, match="judge.watch.model is missing"):
        load_config("configs/quickstart.yaml", ["judge.watch.name=llm", "judge.watch_share=0.5"])
