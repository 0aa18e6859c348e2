"""README and docs match the project: stages, paths, metrics, packages, generated tables, commands and examples."""

import asyncio
import re
import shlex
import subprocess
import tomllib
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from groups import QUERY, truth_of
from groups import attempt as graded
from parts import arena_of, examiner_of, trainer_judge_of

from arenarl.config.load import load_config
from arenarl.config.schema import Config, EnvironmentConfig, JudgeConfig, JudgesConfig, RewardConfig, RolloutConfig
from arenarl.config.value_types import REWARDS
from arenarl.domains import rubrics
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.truth import TravelTruth
from arenarl.evaluation import evaluation, statistics
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.llm.client import Usage
from arenarl.plan.estimate import most_calls
from arenarl.report.summary import HEADS
from arenarl.rollout.environment import step
from arenarl.rollout.weight_sync import Parity
from arenarl.tables.documents import GENERATED
from arenarl.tables.rows import LATER_TABLES, TABLES, read_table, runs_of
from arenarl.tournament.play import run_tournament
from arenarl.training.methods import METHODS
from arenarl.training.metrics import outcome_metrics
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.watching import watch_metrics
from arenarl.trajectory import Query, RolloutGroup, Trajectory

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "data/README.md", "configs/launch/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
TEXTS = "\n".join(DOCUMENTS.values())
REPRODUCE = (ROOT / "reproduce.sh").read_text(encoding="utf-8")


def stages_in(pattern, text):
    """Return the words of alternatives such as `sft | rl` that the pattern finds."""
    return {word for names in re.findall(pattern, text, re.MULTILINE) for word in names.split(" | ")}


STAGES = stages_in(r"^  (\w+(?: \| \w+)*)\) (?:without_config; )?shift", REPRODUCE) | {*TABLES, *LATER_TABLES}


def commands():
    """Yield (document, line) of every command in a document's indented blocks, continued lines joined."""
    for document, text in DOCUMENTS.items():
        for line in text.replace("\\\n", " ").splitlines():
            if re.match(r" {4}(?:\./reproduce|python|torchrun|sbatch|CONFIG=)", line):
                yield document, line.strip().split("  #")[0]


def test_the_readme_is_short_and_has_no_row_that_was_not_run():
    assert len(README.splitlines()) <= 200 and "not run" not in README


def test_the_map_names_exactly_the_packages():
    named = re.findall(r"^    arenarl/(\w+)", README, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "arenarl").glob("*/__init__.py")}
    assert len(named) == len(set(named)) <= 20 and set(named) == packages | {"trajectory"}


def test_every_page_of_docs_is_in_its_index():
    linked = set(re.findall(r"\]\((\w+\.md)\)", DOCUMENTS["docs/README.md"]))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} == linked


def test_every_stage_in_a_document_exists_in_reproduce_sh():
    stages = set(re.findall(r"\./reproduce\.sh (\w+)", TEXTS)) - {"STAGE", "mine"}  # mine: a reader's own table
    assert stages >= {"pipeline", "data", "sft", "rl", "evaluate", "baselines", "bench", "test"}
    assert stages <= STAGES


def test_every_stage_that_the_usage_names_is_in_a_document_and_can_be_called():
    usage = REPRODUCE.split("usage() {")[1].split("exit 2")[0]
    assert stages_in(r'^ *echo "  (\w+(?: \| \w+)*)  ', usage) == STAGES
    named = re.findall(r"\./reproduce\.sh (\w+)", TEXTS) + re.findall(r"`(\w+)`", DOCUMENTS["docs/running.md"])
    assert STAGES - set(named) == set()


PARTS = "judges|policies|environments|launch|prompts|rubrics|tables"  # folders of configs/ without whole runs


def test_every_reward_is_explained():
    section = DOCUMENTS["docs/methods.md"].split("## Rewards")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(REWARDS)


def test_every_method_is_explained_with_the_keys_that_choose_it():
    table = DOCUMENTS["docs/methods.md"].split("\n## ")[0]
    keys_of = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE))
    for method in METHODS:
        for key, value in method.keys.items():
            named = re.search(rf"`(?:rl\.)?{key.removeprefix('rl.')}: {value}`", keys_of.get(method.title, ""))
            assert named or value == attrgetter(key)(Config()), f"docs/methods.md: {method.title} lacks {key}: {value}"


def test_every_config_in_a_document_exists_and_loads():
    for path in sorted(set(re.findall(rf"configs/(?!(?:{PARTS})/)[\w/]+\.yaml", TEXTS))):
        assert load_config(ROOT / path).name


def test_every_key_in_a_command_exists_and_takes_its_value(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for document, command in commands():
        words = shlex.split(command)
        sets = [word for flag, word in pairwise(words) if flag == "--set"]
        if sets and "..." not in command:
            yamls = [word for word in words if re.fullmatch(r"(?:CONFIG=)?configs/(?!judges).*\.yaml", word)]
            config = [*yamls, "configs/quickstart.yaml"][0].removeprefix("CONFIG=")
            assert load_config(config, [change for change in sets if ":With" not in change]), (document, command)


def test_every_script_and_module_in_a_command_exists():
    for script in re.findall(r"^ {4}(?:python|torchrun --nproc_per_node \d+) ([\w/]+\.py)", TEXTS, re.MULTILINE):
        folders = ROOT, ROOT / "examples" / "own_domain"  # where the tutorial's commands run
        assert any((folder / script).is_file() for folder in folders), script
    for module in re.findall(r"python -m (arenarl[\w.]*)", TEXTS):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


REQUIREMENTS = [
    line.split(" #")[0]
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def test_vllm_has_one_version_everywhere():
    [pinned] = [line.split(";")[0] for line in REQUIREMENTS if line.startswith("vllm==")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["vllm"] == [pinned]
    assert set(re.findall(r"\bvllm(?:-cpu)?==[\d.]+", TEXTS)) == {pinned}
    assert not re.search(r"vllm(?:-cpu)?==\d|vLLM \d", REPRODUCE)  # reproduce.sh reads it from requirements.txt


def test_every_link_leads_to_a_file():
    for document, text in DOCUMENTS.items():
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (ROOT / document).parent.joinpath(target).exists(), (document, target)


def test_every_anchor_is_a_heading():
    for document, text in DOCUMENTS.items():
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", text):
            page = (ROOT / document).parent.joinpath(target).read_text(encoding="utf-8") if target else text
            titles = re.findall(r"^#+ (.+)", page, re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, (document, target, anchor)


def test_every_logged_metric_is_explained():
    explained = DOCUMENTS["docs/metrics.md"]
    message = {"role": "assistant", "reasoning_content": "", "content": "<answer>\nx\n</answer>"}
    trajectory = Trajectory("q", [message], "answer", meta={"tool_calls": 1, "tool_errors": 0, "turns": 1})

    async def compare(i, j):
        return 1.0, 2.0

    outcome = GroupOutcome([0.5, 0.5], [0.5, 0.5], 2, 0, run_tournament("round_robin", 2, compare))
    group = RolloutGroup(Query("q", "travel", "Search", "en", "x"), [trajectory, trajectory])
    names = set(outcome_metrics([group], [outcome], lambda query, trajectory: TravelTruth()))
    assert {"judge/tie_rate", "judge/flip_rate"} < names
    arena = arena_of(Config(rollout=RolloutConfig(group_size=2)), None)
    arena.learn(2, [outcome.scored_calls])
    names |= set(arena.judge_metrics()) | set(HEADS)
    names |= set(watch_metrics([], Usage()))
    names |= set(Parity(0.0, 0.0, 1.0).metrics)
    ours = ("training/trl_adapter.py", "training/step.py")
    for module in (*ours, "llm/client.py", "domains/research/search.py", "rollout/mcp_environment.py"):
        text = (ROOT / "arenarl" / module).read_text(encoding="utf-8")
        names |= set(re.findall(r'"((?:time|rollout|judge|search|mcp)/\w+)"', text))
    assert {"search/hit_rate", "mcp/hit_rate"} < names
    assert [name for name in sorted(names | statistics.COMMON) if f"`{name}`" not in explained] == []


def test_every_generated_part_has_one_start_and_one_end_marker():
    for document, parts in GENERATED.items():
        for slash in ("", "/"):
            assert sorted(re.findall(rf"<!-- {slash}(\w+) -->", DOCUMENTS[document])) == sorted(parts)


def examples(page):
    return re.findall(r"```python\n(.*?)```", DOCUMENTS[page], re.DOTALL)


EXAMPLES = {"judge": examples("docs/judges.md")[0], "topology": examples("docs/tournament.md")[1]}
EXAMPLES |= dict(zip(("tools", "environment", "domain", "world"), examples("docs/domains.md"), strict=True))
EXAMPLES |= dict(zip(("reward", "ranked"), examples("docs/methods.md"), strict=True))


@pytest.mark.parametrize("page", ["README.md", "docs/tournament.md"])
def test_the_tournament_example_ranks(page, capsys):
    example = examples(page)[0]
    exec(example, {})  # noqa: S102 - our own text
    assert capsys.readouterr().out == "[3.0, 0.0, 2.0, 1.0] 10\n"


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Return a function that saves an example's module and returns the name for a config."""
    monkeypatch.syspath_prepend(tmp_path)

    def save(example, name):
        (tmp_path / f"readme_{example}.py").write_text(EXAMPLES[example], encoding="utf-8")
        return f"readme_{example}:{name}"

    return save


def answered(text):
    return Trajectory("q", [{"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}], "answer")


def test_the_judge_example_judges(saved):
    config = Config(judge=JudgesConfig(train=JudgeConfig(name=saved("judge", "Brief"))))
    judge = trainer_judge_of(config)
    query = Query("q", "travel", "Search", "en", "x")
    short, long = (answered("x" * size) for size in (40, 200))
    assert asyncio.run(judge.compare(query, short, long)).totals == pytest.approx((9.0, 5.0))
    assert asyncio.run(judge.score(query, short)) is None


def test_the_tools_example_adds_a_tool(saved):
    environment = make_environment(EnvironmentConfig(name=saved("tools", "WithHolidays"), results="compact"), "en")
    assert len(environment.tools) == 7
    assert environment.call("is_holiday", {"date": "2026-05-01"}) == "yes"
    assert environment.call("search_poi", {"query": "museum"})
    assert environment.call("is_holiday", {}).startswith("Error: is_holiday needs")


def test_the_environment_example_answers(saved):
    weather = make_environment(EnvironmentConfig(name=saved("environment", "Weather")), "en")
    assert weather.call("forecast", {"city": "Xian"}) == "Xian: sunny, 21 °C"
    assert weather.call("forcast", {}).startswith("Error: unknown tool")


def test_the_example_of_a_world_with_a_state_works(saved):
    safe = make_environment(EnvironmentConfig(name=saved("world", "Safe")), "en")
    query = Query("q", "safe", "", "en", "Open it.", {"numbers": [7, 3]})
    assert safe.reset(query) == "A safe with 2 numbers."
    results = [asyncio.run(step(safe, "turn", {"to": number})) for number in ("7", 100, 5, 3)]
    assert [(result.observation, result.done, result.reward) for result in results] == [
        ("Click.", False, 1.0),
        ("Error: to does not fit: 100 is greater than the maximum of 99.", False, None),
        ("Error: nothing clicks.", False, None),
        ("It opens.", True, 1.0),
    ]


def test_the_embedded_judge_scores_by_the_truth_of_the_domain_example(saved, tmp_path, monkeypatch):
    rubric = "answer: {weight: 1.0, dimensions: {answer_correct: right or wrong}}\n"
    (tmp_path / "weather_en.yaml").write_text(rubric, encoding="utf-8")
    monkeypatch.setattr(rubrics, "RUBRICS", tmp_path)
    environment = EnvironmentConfig(domain=saved("domain", "WeatherDomain"))
    config = Config(environment=environment, judge=JudgesConfig(train=JudgeConfig(noise="none")))
    examine, query = examiner_of(config), Query("q", "weather", "", "en", "x", {"weather": "sunny"})
    judge = trainer_judge_of(config, examine=examine)
    right, wrong = answered("sunny"), answered("rain")
    assert asyncio.run(judge.compare(query, right, wrong)).totals == (10.0, 0.0)
    cases = [evaluation.Case(query, answer, examine(query, answer), np.zeros((1, 1))) for answer in (right, wrong)]
    figures = evaluation.figures_of(cases, 0, 0)
    assert figures["correct"]["mean"] == 50.0 and figures["quality"]["mean"] == 5.0


def test_the_topology_example_ranks_and_works_in_a_config(saved):
    name = saved("topology", "Ring")
    quality = [3.0, 9.0, 5.0, 7.0]

    async def compare(i, j):
        return quality[i], quality[j]

    ranking = run_tournament(name, 4, compare)
    assert ranking.ranks_G == [3.0, 0.0, 2.0, 1.0] and ranking.judge_calls == 8
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"tournament.topology={name}"])
    groups = [RolloutGroup(QUERY, [graded(score) for score in quality])]
    (outcome,) = arena_of(config, EmbeddedJudge(JudgeConfig(noise="none"), truth_of, 0)).reward_groups(groups)
    assert outcome.rewards_G == pytest.approx([0, 1, 1 / 3, 2 / 3])
    assert most_calls(config) == 2 * config.rollout.group_size


def test_the_table_example_runs_its_rows_with_the_reward_example(saved, tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENTS["docs/results.md"], re.DOTALL)
    example = example.replace("base: ", f"base: {ROOT}/configs/tables/").replace(
        "my_rewards:cheap", saved("reward", "cheap")
    )
    (tmp_path / "mine.yaml").write_text(example, encoding="utf-8")
    runs = runs_of("mine", read_table("mine", tmp_path), [], [0], quick=True)
    assert [run.row for run in runs] == ["arenarl", "cheap"] and {run.loaded.rl.steps for run in runs} == {4}


def test_the_reward_example_rewards(saved):
    config = Config(reward=RewardConfig(name=saved("reward", "cheap")))
    judge = EmbeddedJudge(JudgeConfig(noise="none"), truth_of, 0)
    trajectories = [graded(8.0), graded(8.0, "max_turns"), graded(5.0, "tool_crash")]
    (outcome,) = arena_of(config, judge).reward_groups([RolloutGroup(QUERY, trajectories)])
    [total] = asyncio.run(judge.score(QUERY, trajectories[0])).totals
    assert outcome.rewards_G == [pytest.approx((total - 0.5) / 10), 0.0, None]  # one tool call
    assert (outcome.ranks_G, outcome.judge_calls, outcome.failed_calls) == ([0.0, 1.0, None], 1, 0)


def test_the_example_of_ranks_with_a_penalty_plays_the_tournament_and_counts_its_calls(saved):
    judge = EmbeddedJudge(JudgeConfig(noise="none"), truth_of, 0)
    valid = [graded(score) for score in (3.0, 9.0, 5.0, 7.0)]
    trajectories = [*valid, graded(9.0, "max_turns"), graded(9.0, "tool_crash")]
    groups = [RolloutGroup(QUERY, trajectories)]
    (outcome,) = arena_of(Config(reward=RewardConfig(name=saved("ranked", "ranked"))), judge).reward_groups(groups)
    assert outcome.rewards_G == [pytest.approx(1 - rank / 4 - 0.05) for rank in (3, 0, 2, 1)] + [0.0, None]
    (plain,) = arena_of(Config(), judge).reward_groups([RolloutGroup(QUERY, trajectories[:4])])
    assert outcome.judge_calls == plain.judge_calls and outcome.failed_calls == 0


@pytest.fixture(scope="module")
def committed_results(tmp_path_factory):
    """The committed results/, because a user's own runs write there; without git, the folder as it is."""
    folder = tmp_path_factory.mktemp("committed")
    archive = subprocess.run(["git", "archive", "HEAD", "results"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        return ROOT / "results"
    # tar, because tarfile's safe extraction needs Python 3.11.4
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "results"


MARKERS = [(document, marker) for document, parts in GENERATED.items() for marker in parts]


@pytest.mark.parametrize(("document", "marker"), MARKERS)
def test_the_generated_parts_are_up_to_date(document, marker, committed_results):
    """With the committed results, or with the present ones, which are about to be committed."""
    written = DOCUMENTS[document].split(f"<!-- {marker} -->\n")[1].split(f"<!-- /{marker} -->")[0]
    render = GENERATED[document][marker]
    is_current = written == render(committed_results) + "\n" or written == render(ROOT / "results") + "\n"
    assert is_current, f"{document}, {marker}: run python -m arenarl.tables.documents"


def test_a_part_without_results_renders_without_an_error(tmp_path):
    for document, marker in MARKERS:
        text = GENERATED[document][marker](tmp_path)
        if marker in ("quickstart", "fidelity", "noise_grid", "data_pipeline"):
            assert text.strip() == "not run"
