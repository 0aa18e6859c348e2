"""The report: complete content, no HTML from trajectories, labels, figures, and the page in a browser."""

import base64
import gzip
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import Browser, missing
from finished_run import HOSTILE, NAMES, Run
from hostile import HOSTILE as TEXTS
from parts import arena_of

from arenarl.config.load import config_to_yaml, load_config
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.report.__main__ import folders_of
from arenarl.report.figures import draw_curves, draw_figures, noise_against_spread, training_curves, training_log
from arenarl.report.page import write_page
from arenarl.report.page.data import pack, training_items
from arenarl.report.summary import print_table, summary_of_run
from arenarl.system.atomic_files import write_json, write_text
from arenarl.system.errors import UserError
from arenarl.training.metrics import group_records
from arenarl.trajectory import RolloutGroup, Trajectory, append_step, read_jsonl, write_jsonl


@pytest.fixture(scope="module")
def run(tmp_path_factory, world, compact, taught):
    return Run(tmp_path_factory.mktemp("report"), world, compact, [solved.query for solved in taught[::13]])


@pytest.fixture
def small_run(tmp_path, world, compact, taught, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, world, compact, [solved.query for solved in taught[:3]], bracket=False)


@pytest.fixture(scope="module")
def page(run):
    return run.page()


@pytest.fixture
def undrawn(monkeypatch):
    """Write empty figures, because drawing them takes seconds."""

    def write_empty(figure, path):
        write_text(path.with_suffix(".svg"), '<svg xmlns="http://www.w3.org/2000/svg"></svg>')
        return path.with_suffix(".svg")

    monkeypatch.setattr("arenarl.report.figures.save_figure", write_empty)


def unpacked(page):
    """Return the sets of the index, and the items of each set, as the page's script reads them."""

    def decode(text):
        return json.loads(gzip.decompress(base64.b64decode(text)), parse_constant=pytest.fail)  # no NaN

    texts = re.findall(r'<script type="text/plain" id="([\w-]+)">([\w+/=]*)<', page)
    data = {name: decode(text) for name, text in texts}
    sets = {item_set["key"]: item_set for item_set in data["index"]["sets"]}
    rows = {key: item_set["rows"] for key, item_set in sets.items()}
    return sets, {key: [data[f"{key}-{row['block']}"][row["position"]] for row in rows[key]] for key in sets}


def test_the_page_has_every_evaluated_trajectory_match_and_training_group(run, page):
    sets, items = unpacked(page)
    assert sets["queries"]["names"] == NAMES
    for k, name in enumerate(NAMES):
        records = read_jsonl(run.dir / "evaluate" / f"{name.replace(' ', '_')}.jsonl")
        for record, item in zip(records, items["queries"], strict=True):
            entrant = item["entrants"][k]
            assert (item["id"], item["query"]) == (record["query_id"], record["query"])
            assert (entrant["name"], entrant["valid"]) == (name, record["valid"])
            results = [message["content"] for message in record["messages"] if message["role"] == "tool"]
            calls = [call["function"] for message in record["messages"] for call in message.get("tool_calls", [])]
            assert [result for turn in entrant["turns"] for result in turn["observations"]] == results
            assert [call for turn in entrant["turns"] for call in turn["tool_calls"]] == calls
            assert entrant["quality"] == record["findings"]["quality"]
            assert entrant["turns"][-1]["answer"] == Trajectory.from_record(record).answer
    for record, item in zip(read_jsonl(run.dir / "evaluate" / "tournaments.jsonl"), items["queries"], strict=True):
        (tournament,) = item["tournaments"]
        assert tournament["ranks"] == record["ranks_G"]
        assert [match["calls"] for match in tournament["matches"]] == [match["calls"] for match in record["matches"]]
    assert "<title>small · ArenaRL</title>" in page and "<h1>small</h1>" in page
    records = list(read_jsonl(run.dir / "rl" / "groups.jsonl"))
    assert [row["step"] for row in sets["training"]["rows"]] == [record["step"] for record in records]
    for record, item in zip(records, items["training"], strict=True):
        assert [entrant["reward"] for entrant in item["entrants"]] == record["rewards"]
        assert [entrant["name"] for entrant in item["entrants"]] == ["anchor", "sample 1", "sample 2", "sample 3"]
        assert len(item["tournaments"][0]["matches"]) == len(record["ranking"]["matches"]) > 0


@pytest.mark.parametrize("reward", ["tournament_grpo", "win_rate", "pointwise_trajectory"])
def test_the_page_shows_groups_of_every_kind_of_reward(run, tmp_path, reward):
    config = load_config("configs/quickstart.yaml", [f"reward.name={reward}", "rollout.group_size=4"])
    group = RolloutGroup(run.queries[1], [run.solve(f"sample {g}", 0.5)[run.queries[1].query_id] for g in range(4)])
    outcomes = arena_of(config, EmbeddedJudge(config.judge.train, run.examine, 0)).reward_groups([group])
    append_step(tmp_path / "groups.jsonl", 0, group_records(0, [group], outcomes, run.examine))
    (row,), (block,) = pack(training_items(tmp_path / "groups.jsonl", reward))
    ((item,),) = [json.loads(gzip.decompress(base64.b64decode(block)))]
    (tournament,) = item["tournaments"]
    assert len(row["qualities"]) == 4 and tournament["ranks"] == outcomes[0].ranks_G
    assert bool(tournament["matches"]) == (reward == "win_rate")
    assert bool(tournament["group_calls"]) == (reward == "tournament_grpo")


def test_an_outcome_sums_both_orders(page):
    sets, items = unpacked(page)
    seen = set()
    for row, item in zip(sets["queries"]["rows"], items["queries"], strict=True):
        for entrant, outcome in zip(item["entrants"], row["outcomes"], strict=True):
            pair, matches = {0, NAMES.index(entrant["name"])}, item["tournaments"][0]["matches"]
            calls = next((match["calls"] for match in matches if {match["i"], match["j"]} == pair), [])
            if calls:
                lead = sum(call["scores"][call["first"] == 0] - call["scores"][call["first"] != 0] for call in calls)
                assert outcome == ("draw" if abs(lead) < 1e-9 else "win" if lead > 0 else "loss")
            seen.add(outcome)
    assert {"win", "loss", "invalid"} <= seen


def test_the_page_is_self_contained_escapes_texts_and_labels_the_simulated_judge(page):
    assert set(re.findall(r'(?:src|href)="([^"]{0,5})', page)) <= {"data:", "data:,", "#summ", "#quer", "#trai"}
    settings = {"http://127.0.0.1"}  # rollout.server_url
    assert set(re.findall(r"https?://[\w./]+", page)) - settings == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert {item_set["judge"] for item_set in unpacked(page)[0].values()} == {"simulated judge"}
    assert "simulated judge" in page.split("<main")[0] and "by the simulated judge" in page
    assert HOSTILE in json.dumps(unpacked(page)[1]["queries"][0], ensure_ascii=False).replace('\\"', '"')
    assert "onerror=" not in page and "hacked" not in page
    assert page.count("<script") == page.count("</script>")
    assert len(re.findall(r'<script type="module">', page)) == 1


def test_page_and_figures_are_reproducible(run, page):
    figures = {path: path.read_bytes() for path in (run.results / "figures").iterdir()}
    assert {path.suffix for path in figures} == {".png", ".svg"} and len(figures) == 10
    assert run.page() == page
    assert {path: path.read_bytes() for path in (run.results / "figures").iterdir()} == figures


def test_a_run_without_evaluation_is_refused(tmp_path):
    with pytest.raises(UserError, match="has not been evaluated; run: python evaluate.py"):
        write_page(tmp_path / "runs" / "x", tmp_path / "results" / "x")


def lines(path, change):
    write_jsonl(path, change(list(read_jsonl(path))))


def without(key):
    return lambda records: [{name: value for name, value in record.items() if name != key} for record in records]


@pytest.mark.parametrize(("damage", "error"), [
    (lambda run, folder: lines(folder / "sft_sampled.jsonl", lambda records: records[:2]), "different evaluations"),
    (lambda run, folder: lines(folder / "tournaments.jsonl", lambda records: records[1:]), "different evaluations"),
    (lambda run, folder: lines(folder / "rl_greedy.jsonl", without("findings")), "rl_greedy.jsonl .* earlier version"),
    (lambda run, folder: (folder / "rl_greedy.jsonl").unlink(), "rl_greedy.jsonl is missing or damaged"),
    (lambda run, folder: write_json(run.results / "summary.json", {"run": "small"}), "summary.json .* earlier version"),
])  # fmt: skip
def test_files_of_several_evaluations_or_versions_are_refused(small_run, undrawn, damage, error):
    """As after a kill while the evaluation is repeated with other data."""
    damage(small_run, small_run.dir / "evaluate")
    with pytest.raises(UserError, match=f"{error}.*; run evaluate.py again"):
        small_run.page()


def other_key(text, rng):
    """Rename one of the text's JSON keys, as a flipped bit in a file may."""
    place = rng.choice([match.start(1) for match in re.finditer(rb'"(\w+)": ', text)] or [0])
    return text[:place] + b"q" + text[place + 1 :]


DAMAGES = [
    other_key, lambda text, rng: b"", lambda text, rng: text[: len(text) // 2], lambda text, rng: b"\xff\xfe\0",
    lambda text, rng: rng.choice([b"[1]\n", b"{}\n", b"null\n", b"7\n"]), lambda text, rng: b"a: [",
    lambda text, rng: re.sub(rb'": [\["{]', b'": 7, "x": [', text, count=1),
]  # fmt: skip


def test_any_damage_to_a_file_of_the_page_is_refused_by_name_or_leaves_a_page(small_run, undrawn):
    rng, refused = random.Random(0), set()
    for path in [*sorted((small_run.dir / "evaluate").iterdir()), *sorted((small_run.dir / "rl").glob("[cg]*.jsonl"))]:
        text = path.read_bytes()
        for damage in [None, *DAMAGES]:
            path.write_bytes(damage(text, rng)) if damage else path.unlink()
            try:
                small_run.page()
            except UserError as error:
                refused.add(path.name)
                assert re.search(rf"{path.name}.* (restore|delete it)| run.* evaluate\.py", str(error)), str(error)
            path.write_bytes(text)
    assert {"config.yaml", "groups.jsonl", "curve.jsonl", "tournaments.jsonl", "baseline.jsonl"} <= refused


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_config_is_named_before_anything_of_the_run_is_read(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    damaged = damage(b'results: "results"\n', random.Random(0))
    write_text(tmp_path / "runs/one/evaluate/config.yaml", "")
    (tmp_path / "runs/one/evaluate/config.yaml").write_bytes(damaged)
    try:
        assert folders_of("one")[1] in (Path("results/one"), Path("runs/one"))
    except UserError as error:
        assert re.match(r"runs/one/evaluate/config.yaml is damaged \(.*\); run evaluate.py again", str(error))


def test_a_curve_whose_first_point_a_kill_cut_off_is_left_out(small_run, undrawn):
    path = small_run.dir / "rl" / "curve.jsonl"
    path.write_text(path.read_text()[:40])
    assert "Learning curves" not in small_run.page()


@pytest.mark.parametrize("results", ["results", "runs", "elsewhere"])
def test_a_run_is_found_by_name_and_by_folder_and_other_folders_are_refused(tmp_path, monkeypatch, results):
    """A name may have several parts; the evaluation's config names the folder of the results."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "runs/tables/one/evaluate/config.yaml", f"results: {results}\n")
    names = "tables/one runs/tables/one ./runs/tables/one/ {}/runs/tables/one runs/x/../tables/one".split()
    for name in names:
        assert folders_of(name.format(tmp_path)) == (Path("runs/tables/one"), Path(results, "tables/one"))
    write_text(tmp_path / "runs/old/evaluate/config.yaml", "name: old\n")  # of an earlier version
    assert folders_of("old") == (Path("runs/old"), Path("runs/old"))
    for folder in ("/tmp", "../one", "runs/../one"):
        with pytest.raises(UserError, match="is not a folder in"):
            folders_of(folder)


def test_summary_terminal_and_page_have_the_watching_judges_scores_and_rls_judge(small_run, undrawn, capsys):
    run = small_run
    assert "watch" not in summary_of_run(run.config, {})
    for step in range(20):
        scores = {"scores": [5.0, None, 6.0], "judged": [5.0 + step / 10, 9.0, None], "agreement": 0.5 - step / 40}
        record = {"step": step, "query_id": "q", **scores, "calls": 3, "failed": 1}
        append_step(run.dir / "rl" / "watch.jsonl", step, [record])
    run.evaluate(bracket=False)
    summary = json.loads((run.results / "summary.json").read_text())
    assert summary["watch"]["training"]["first"] == 5.2 and summary["watch"]["training"]["last"] == 6.7
    assert summary["watch"]["watching"] == {"first": 5.0, "last": 5.0, "ci": [0.0, 0.0]}
    assert summary["watch"]["failed"] == 20
    print_table(summary)
    output, warning = capsys.readouterr().out, "the watching judge{}s does not rise significantly"
    assert "20 of 60 calls without a verdict" in output and warning.format("'") in output
    assert warning.format("&#x27;") in run.page()
    assert (run.results / "figures" / "watching_judge.svg").is_file()
    path, judge = run.dir / "rl" / "provenance.json", {"judge_train": {"model": "qwen3"}, "judge_is_simulated": False}
    write_json(path, json.loads(path.read_text()) | judge)
    assert summary["provenance"]["judge_is_simulated"]  # by evaluation's config, until RL's provenance says otherwise
    assert summary_of_run(run.config, {})["provenance"].items() >= judge.items()


def test_figures_that_an_llm_verified_are_not_called_noise_free_and_a_bracket_is_optional(small_run, undrawn, capsys):
    summary = json.loads((small_run.results / "summary.json").read_text()) | {"verifier": "o4-mini"}
    half = {"mean": 50.0, "ci": [40.0, 60.0]}
    for figures in (*summary["sft"].values(), *summary["rl"].values()):
        figures |= {"accuracy": half, "pass_at_4": half, "pass_at_k": {"accuracy": [half] * 4}}
    print_table(summary)
    noise_free, verified = re.search(r"; ([^;]*) are noise-free; ([^;]*) by o4-mini", capsys.readouterr().out).groups()
    assert verified == "quality, accuracy and pass@4"
    assert not {"quality", "accuracy", "pass@4"} & set(re.split(", | and ", noise_free))
    write_json(small_run.results / "summary.json", summary)
    page = small_run.page()
    assert "answers correctly by o4-mini&#x27;s verdicts; the rest is noise-free" in page
    for item in unpacked(page)[1]["queries"]:  # without a bracket, the matches with the baseline
        (tournament,) = item["tournaments"]
        assert tournament["topology"] == "anchor" and not tournament["bracket"]
        assert tournament["matches"] and all(0 in (match["i"], match["j"]) for match in tournament["matches"])


def test_the_mean_over_seeds_takes_only_runs_with_equal_settings(small_run, undrawn, capsys):
    run = small_run
    for seed, rate in ((1, run.config.rl.learning_rate), (2, 0.5)):
        other = replace(run.config, seed=seed, rl=replace(run.config.rl, learning_rate=rate))
        shutil.copytree(run.dir / "rl", f"{run.dir}-seed{seed}/rl")
        Path(f"{run.dir}-seed{seed}/rl/config.yaml").write_text(config_to_yaml(other))
    assert "Mean of 2 seeds" in run.page()
    assert re.search(r"small-seed2 is left out .*rl.learning_rate", capsys.readouterr().out)
    (run.dir / "rl" / "config.yaml").write_text(config_to_yaml(run.config) + "swiftness: 3\n")  # an unknown key
    assert "Mean of 2 seeds" not in run.page() and "no mean over seeds: " in capsys.readouterr().out


def test_bands_are_intervals_of_one_seed_or_the_range_of_several(run, undrawn, tmp_path):
    summary = json.loads((run.results / "summary.json").read_text())
    captions = list(draw_figures([run.dir], summary, tmp_path / "one"))
    assert "95 % over test queries; one seed" in captions[0] and len(captions) == 5
    other = tmp_path / "small-seed1"
    append_step(other / "rl" / "curve.jsonl", 0, [Run.point(0, shift=3.0)])
    assert list(draw_figures([run.dir, other], summary, tmp_path / "unfinished")) == captions
    append_step(other / "rl" / "curve.jsonl", 2, [Run.point(2, shift=3.0)])
    assert "Mean of 2 seeds" in list(draw_figures([run.dir, other], summary, tmp_path / "two"))[0]


@pytest.mark.parametrize(("win_rates", "panels"), [
    ((None, None), ["score"]), ((None, 40.0), ["win rate, own judge, %", "score"])])  # fmt: skip
def test_a_figure_without_any_value_has_no_panel_among_the_learning_curves(win_rates, panels):
    points = [
        {"step": step, "eval/sampled/win_rate": win_rate, "eval/sampled/score": 5.0}
        for step, win_rate in enumerate(win_rates)
    ]
    figure = draw_curves({"sampled": ([points], "sampled")}, "own judge")
    assert [axes.get_title() for axes in figure.axes] == panels


def test_a_logged_metric_may_lack_finite_values(tmp_path):
    """A gradient norm of NaN is null in metrics.jsonl."""
    log = [{"step": step, "kl": None, "grad_norm": value} for step, value in ((1, 1.0), (2, None), (3, 2.0))]
    (axes,) = training_curves(log).axes
    assert axes.lines[0].get_xdata().tolist() == [1, 3] and axes.get_title() == "gradient norm"
    (axes,) = noise_against_spread([{"step": 1, "judge/sigma_noise": None}], "judge").axes
    assert not axes.lines


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:Matplotlib currently does not support")  # fonts lack characters
def test_the_training_log_is_the_newest_checkpoints_and_not_that_of_a_users_copy(tmp_path):
    for name, text in {"9": '{"log_history": []}', "10": '{"log_history": [{"step": 10}]}', "10-old": ""}.items():
        write_text(tmp_path / f"checkpoint-{name}" / "trainer_state.json", text)
    assert training_log(tmp_path) == [{"step": 10}]
    write_text(tmp_path / "checkpoint-10" / "trainer_state.json", "{")
    with pytest.raises(UserError, match="trainer_state.json is damaged .*; restore it, or delete its folder"):
        training_log(tmp_path)


def test_subtasks_and_figures_may_have_any_name(tmp_path):
    names, figure = ["C# $a{ and $b", "$$", "$\\frac$", "{judge}", *TEXTS], {"mean": 50.0, "ci": [40.0, 60.0]}
    figures = {"by_subtask": dict.fromkeys(names, {"win_rate": figure})}
    figures["pass_at_k"] = dict.fromkeys((names[0], TEXTS[-3]), [figure])
    summary = {"judge": "simulated", "checkpoints": ["rl"], "rl": {"sampled": figures}}
    summary["provenance"] = {"judge_is_simulated": True}
    points = [{"step": step, "eval/sampled/win_rate": 1.0, "eval/sampled/$a{ and $b\x00": 1.0} for step in (0, 1)]
    write_jsonl(tmp_path / "rl" / "curve.jsonl", points)
    paths = draw_figures([tmp_path], summary, tmp_path)
    assert len(paths) == 3 and all(map(ElementTree.parse, paths.values()))


def needs_browser(test):
    return pytest.mark.browser(pytest.mark.skipif(missing() is not None, reason=str(missing()))(test))


@pytest.fixture
def browser(run, page, request):
    width, is_dark = request.param
    browser = Browser(width, 800, is_dark)
    try:
        browser.open((run.results / "report.html").as_uri())
        browser.wait("document.body.dataset.ready")
        yield browser
        assert browser.complaints() == [] and browser.run("return window.hacked") is None
        assert browser.run("return document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    finally:
        browser.close()


def widths(*pairs):
    names = [f"{width} px, {'dark' if is_dark else 'light'}" for width, is_dark in pairs]
    return pytest.mark.parametrize("browser", pairs, indirect=True, ids=names)


def text_of(browser, selector):
    return browser.run("return document.querySelector(arguments[0]).innerText", selector)


@needs_browser
@widths((1280, False), (400, True))
def test_clicks_lead_from_the_list_to_a_trajectory_and_a_match(browser, page):
    _, items = unpacked(page)
    item = items["queries"][2]
    browser.click("[data-tab=queries]")
    assert browser.wait("document.querySelectorAll('#list li').length") == len(items["queries"])
    browser.click("#list li:nth-child(3) a")
    browser.wait("document.querySelector('#list li:nth-child(3) [aria-current]')")
    browser.wait(f"document.querySelector('#detail h2')?.innerText === {json.dumps(item['query'])}")
    names = browser.run("return [...document.querySelectorAll('.trajectory h4')].map(e => e.innerText)")
    assert names == ["rl greedy", "sft greedy"]
    selector = ".trajectory:first-child .result pre"
    observations = browser.run(f"return [...document.querySelectorAll('{selector}')].map(e => e.textContent)")
    assert observations == [result for turn in item["entrants"][4]["turns"] for result in turn["observations"]]
    browser.click("[aria-label='sft sampled on the right']")
    browser.wait("document.querySelector('.trajectory:last-child h4').innerText === 'sft sampled'")
    browser.click(".bracket [data-match]")
    browser.wait("document.querySelector('#match')")
    number = browser.run("return +document.querySelector('.bracket [aria-pressed=true]').dataset.match")
    match = item["tournaments"][0]["matches"][number]
    selector = "#match tbody tr:first-child td"
    cells = browser.run(f"return [...document.querySelectorAll('{selector}')].map(e => +e.innerText)")
    entrants = match["i"], match["j"]
    first, second = (
        [call["detail"][call["first"] != entrant]["path_breadth"] for entrant in entrants] for call in match["calls"]
    )
    assert cells == [*first, *second, *np.add(first, second)]
    assert "simulated judge" in text_of(browser, "#match")


@needs_browser
@widths((1280, True), (400, False))
def test_hostile_text_is_shown_as_text(browser):
    browser.click("[data-tab=queries]")
    browser.click("#list li:first-child a")
    browser.wait("document.querySelector('.standings')")
    assert text_of(browser, "#detail h2") == HOSTILE
    for part in (".thought pre", ".call dt", ".call dd", ".result pre", ".answer pre"):
        assert browser.run("return document.querySelector(arguments[0]).textContent", part) == HOSTILE
    browser.run("location.hash = '#training'")
    browser.wait("document.querySelectorAll('#list li').length === 6")
    browser.click("#list li:first-child a")
    browser.wait("document.querySelector('#detail .side-button')")
    browser.click("[data-match='0']")
    browser.wait("document.querySelector('#match .reason')")
    assert HOSTILE in browser.run("return document.querySelector('#match .reason').textContent")
    assert browser.run("return document.querySelectorAll('#detail img, #detail script, #list img').length") == 0


@needs_browser
@widths((1280, False))
def test_the_page_filters_and_orders_its_list(browser, page):
    sets, _ = unpacked(page)
    rows = sets["queries"]["rows"]
    browser.click("[data-tab=queries]")

    def choose(name, value):
        change = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; "
        browser.run(change + "e.dispatchEvent(new Event('change'))", name, value)
        return browser.run("return [...document.querySelectorAll('#list .text')].map(e => e.textContent)")

    assert choose("subtask", "Search") == [row["query"] for row in rows if row["subtask"] == "Search"]
    choose("subtask", "")
    assert choose("outcome", "invalid") == [rows[1]["query"]]
    choose("outcome", "")
    assert choose("order", "worst") == [row["query"] for row in sorted(rows, key=lambda row: row["qualities"][4])]
    browser.press("/", *"onerror")
    browser.wait("document.querySelectorAll('#list li').length === 1")
    browser.press("\ue00c")
    browser.click("#inside")
    browser.run("const e = document.getElementById('search'); e.value = 'answer'; e.dispatchEvent(new Event('input'))")
    browser.wait("document.getElementById('count').innerText.startsWith('0 of') === false")


@needs_browser
@widths((1280, False), (400, False))
def test_keys_reach_all_parts(browser):
    browser.run("location.hash = '#training'")
    browser.wait("document.querySelectorAll('#list li').length === 6")
    if browser.run("return innerWidth > 760"):  # the first entry is open
        browser.wait("document.querySelector('#list li:first-child [aria-current]')")
        browser.wait("document.querySelector('.standings')")
    else:  # the list comes first
        browser.press("j")
    browser.press("j")
    browser.wait("document.querySelector('#list li:nth-child(2) [aria-current]')")
    browser.wait("document.querySelector('.standings')")
    browser.press("k", "3")
    browser.wait("document.querySelector('.trajectory h4')?.innerText === 'sample 2'")
    browser.press("n")
    browser.wait("document.querySelector('#match')")
    browser.press("\ue00c")
    browser.wait("!document.querySelector('#match')")
    browser.press("\ue00c")
    browser.wait("!document.querySelector('.standings')")
    browser.press("?")
    browser.wait("document.getElementById('help').open")
    assert "beats the baseline" in text_of(browser, "#signs") and "weighted mean" in text_of(browser, "#help")
    browser.press("\ue00c")
    browser.wait("!document.getElementById('help').open")


@needs_browser
@widths((1280, False))
def test_an_address_opens_its_item(browser, page):
    row = unpacked(page)[0]["queries"]["rows"][4]
    browser.run("location.hash = arguments[0]", f"#queries/{row['id']}")
    browser.wait("document.querySelector('.standings')")
    assert text_of(browser, "#detail h2") == row["query"]
    browser.run("history.back()")
    browser.wait("!document.getElementById('summary').hidden")
