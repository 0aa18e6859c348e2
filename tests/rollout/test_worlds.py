"""Stateful environments: instances, first observations, ends, rewards, crashes, text actions."""

import asyncio
import copy
import gc
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from markupsafe import Markup
from policies import ANSWER, Scripted, call, observations_of, think
from worlds import Counter, mortal

from arenarl.config.schema import RolloutConfig
from arenarl.rollout import instances
from arenarl.rollout.engine import NO_ACTION, ONE_ACTION, Attempt, RolloutEngine
from arenarl.rollout.environment import NoTools, Step, tool_schema
from arenarl.rollout.instances import temporary_environment
from arenarl.rollout.text_actions import action_message
from arenarl.system import event_loops
from arenarl.system.errors import UserError
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.trajectory import Query, Trajectory, parse_turn, read_turns, write_jsonl

LIMITS = RolloutConfig(group_size=4, max_turns=4, max_tokens=600, max_turn_tokens=200)
UP, DOWN = call("act", action="up"), call("act", action="down")


def counting(goal=2, query_id="q"):
    return Query(query_id, "counter", "small", "en", f"Task {query_id}.", {"goal": goal})


def fresh(**attributes):
    """A subclass of Counter with its own counts of instances."""
    return type("Fresh", (Counter,), {"made": 0, "closed": 0, **attributes})


def engine_of(tokenizer, turns, world, config=LIMITS, **options):
    scripts = turns if isinstance(turns, dict) else {"Task": turns}
    return RolloutEngine(Scripted(tokenizer, scripts), tokenizer, world, config, schemas_in_prompt=False, **options)


def roll_out(tokenizer, turns, world, query=None, config=LIMITS, **options):
    return engine_of(tokenizer, turns, world, config, **options).roll_out([Attempt(query or counting(), 0.0, 1)])[0]


def attempts(count, goal=2):
    return [Attempt(counting(goal, str(number)), 0.0, number) for number in range(count)]


def test_a_world_has_a_first_observation_and_ends_the_trajectory_with_a_reward(tokenizer):
    world = fresh()
    trajectory = roll_out(tokenizer, [UP, UP, UP], world)
    assert trajectory.messages[0]["content"] == "Task q.\n\nThe counter stands at 0. Goal: 2."
    assert "Task q.\n\nThe counter stands at 0. Goal: 2.<|im_end|>" in tokenizer.decode(trajectory.prompt_ids)
    assert (trajectory.stop_reason, trajectory.valid, trajectory.meta["turns"]) == ("done", True, 2)
    assert trajectory.meta["reward"] == pytest.approx(1.2)
    assert observations_of(trajectory) == [["It stands at 1."], ["It stands at 2."]]
    assert trajectory.policy_mask_T[-1] == 1  # without the last observation's tokens
    assert (world.made, world.closed) == (1, 1)


def test_running_out_of_turns_is_valid_unless_the_world_needs_an_answer(tokenizer):
    assert roll_out(tokenizer, [UP, DOWN, UP, DOWN], fresh()).stop_reason == "horizon"
    # rollout.turn_schedule
    (short,) = engine_of(tokenizer, [UP, DOWN, UP], fresh()).roll_out([Attempt(counting(), 0.0, 1, max_turns=2)])
    assert (short.stop_reason, short.meta["turns"], short.meta["reward"]) == ("horizon", 2, 0.2)
    late = roll_out(tokenizer, [UP, DOWN, UP, DOWN], fresh(needs_answer=True))
    assert late.stop_reason == "max_turns" and not late.valid


def test_a_turn_without_an_action_or_with_two_gets_an_error_and_the_trajectory_continues(tokenizer):
    two = think(UP.partition("\n\n")[2] + "\n" + UP.partition("\n\n")[2])
    trajectory = roll_out(tokenizer, [ANSWER, two, UP, UP], fresh())
    assert observations_of(trajectory) == [[NO_ACTION], [ONE_ACTION] * 2, ["It stands at 1."], ["It stands at 2."]]
    assert trajectory.stop_reason == "done" and trajectory.meta["tool_errors"] == 3
    assert roll_out(tokenizer, [UP, ANSWER], fresh(may_stop=True)).stop_reason == "done"
    three = think("\n".join([UP.partition("\n\n")[2]] * 3))  # calls after the end do not run
    ended = roll_out(tokenizer, [three], fresh(one_call_a_turn=False))
    assert ended.stop_reason == "done" and observations_of(ended) == [["It stands at 1.", "It stands at 2."]]


def test_a_worlds_score_replaces_the_sum_of_rewards(tokenizer):
    async def score(self):
        return self.value / 10

    assert roll_out(tokenizer, [UP, UP], fresh(score=score)).meta["reward"] == 0.2
    assert roll_out(tokenizer, [UP, UP], fresh(score=lambda self: None)).meta["reward"] == pytest.approx(1.2)
    assert roll_out(tokenizer, [UP, UP], fresh(score=lambda self: float("nan"))).is_void
    assert roll_out(tokenizer, [UP, UP], fresh(score=7)).meta["reward"] == pytest.approx(1.2)  # not a method


def test_the_sum_of_rewards_does_not_depend_on_their_order(tokenizer):
    def call(self, name, arguments):
        return Step("x", done=not self.left, reward=self.left.pop() if self.left else 0.0)

    world = fresh(call=call, reset=lambda self, query: setattr(self, "left", query.constraints["rewards"]))
    orders = permutations((0.1, 0.2, 0.7, 1e9))
    queries = [Query(str(order), "counter", "small", "en", "Task.", {"rewards": list(order)}) for order in orders]
    engine = engine_of(tokenizer, [UP] * 5, world, replace(LIMITS, max_turns=5))
    trajectories = engine.roll_out([Attempt(query, 0.0, 1) for query in queries])
    assert len({trajectory.meta["reward"] for trajectory in trajectories}) == 1
    assert all(len(query.constraints["rewards"]) == 4 for query in queries)  # the world used up a copy


@pytest.mark.parametrize("observation", [7, ("x", {"info": 1})], ids=repr)
def test_a_first_observation_that_is_not_text_stops_the_run_with_a_line(tokenizer, observation):
    world = fresh(reset=lambda self, query: observation)
    kind = type(observation).__name__
    with pytest.raises(UserError, match=f"reset returned a {kind}; return the text that is seen first"):
        roll_out(tokenizer, [UP, UP], world)
    assert world.made == world.closed


def test_instances_are_a_trajectorys_own_or_shared_or_reused(tokenizer):
    for attributes, made in (({}, 6), ({"reusable": True}, 1), ({"shared": True}, 1)):
        world = fresh(**attributes)
        engine = engine_of(tokenizer, [UP, UP], cache(world) if attributes.get("shared") else world, max_instances=2)
        trajectories = engine.roll_out(attempts(6))
        assert world.made == made
        if "shared" not in attributes:
            assert [trajectory.stop_reason for trajectory in trajectories] == ["done"] * 6
            assert world.made - world.closed == (1 if attributes else 0)
        del engine
        gc.collect()
        assert world.made - world.closed == attributes.get("shared", 0)  # reusable instances close with the engine


@pytest.mark.parametrize("kind", ["reusable", "shared"])
def test_a_lasting_instance_keeps_its_event_loop_and_its_plain_calls_run_in_the_callers_thread(tokenizer, kind):
    loops, threads = set(), set()

    async def reset(self, query):
        loops.add(asyncio.get_running_loop())
        return Counter.reset(self, query)

    def call(self, name, arguments):
        threads.add(threading.current_thread())
        return Counter.call(self, name, arguments)

    world = fresh(reset=reset, call=call, **{kind: True})
    engine = engine_of(tokenizer, [UP, UP], world)
    for _ in range(3):
        (trajectory,) = engine.roll_out([Attempt(counting(), 0.0, 1)])
        assert trajectory.stop_reason == "done" and "begun_again" not in trajectory.meta
    assert len(loops) == 1 and all(loop.is_running() for loop in loops) and threads == {threading.current_thread()}
    del engine
    gc.collect()
    assert world.made == 1 and world.closed == (kind == "reusable")


def test_a_retry_takes_no_idle_instance_because_the_same_fault_may_have_broken_it(tokenizer, capfd):
    used, broken = set(), set()

    async def call(self, name, arguments):
        if self in broken:
            raise ConnectionError("the server was restarted")
        used.add(self)
        while len(used) < 4:  # until four trajectories have an instance
            await asyncio.sleep(0)
        return Counter.call(self, name, arguments)

    world = fresh(call=call, reusable=True)
    engine = engine_of(tokenizer, [UP, UP], world, max_instances=4, timeout_s=60)
    engine.roll_out(attempts(8))
    assert len(used) == 4
    broken |= used
    for trajectories in (engine.roll_out(attempts(1)), engine.roll_out(attempts(8))):
        assert all(trajectory.stop_reason == "done" for trajectory in trajectories)
        assert world.made - world.closed <= 4


def test_at_most_max_instances_are_in_use_at_once(tokenizer):
    in_use = []

    class Slow(fresh()):
        async def call(self, name, arguments):
            in_use.append(type(self).made - type(self).closed)
            await asyncio.sleep(0)
            return super().call(name, arguments)

    engine_of(tokenizer, [UP, UP], Slow, max_instances=3).roll_out(attempts(9))
    assert max(in_use) <= 3 and Slow.made == Slow.closed == 9


def test_a_trajectory_whose_world_dies_starts_again_and_is_void_after_a_second_crash(tokenizer, capfd):
    dying = mortal(1.0)
    void = roll_out(tokenizer, [UP, UP], dying)
    assert void.is_void and "reward" not in void.meta
    assert void.meta["begun_again"] == void.meta["crash"] == "ConnectionError: the world is gone"
    assert dying.deaths == dying.made == dying.closed == 2

    class DiesOnce(fresh()):
        def call(self, name, arguments):
            if type(self).made == 1 and self.value:
                raise ConnectionError("once")
            return super().call(name, arguments)

    again, whole = roll_out(tokenizer, [UP, UP], DiesOnce), roll_out(tokenizer, [UP, UP], fresh())
    assert again.valid and again.meta.pop("begun_again") == "ConnectionError: once"
    assert again == whole


@pytest.mark.parametrize("end", [SystemExit("no more"), asyncio.CancelledError("a task of the world's")], ids=repr)
@pytest.mark.parametrize("place", ["reset", "call", "score", "close"])
def test_a_world_that_exits_ends_only_its_trajectory(tokenizer, end, place, capfd):
    async def fail(self, *_):
        type(self).closed += place == "close"
        raise end

    for reusable in (False, True):
        world = fresh(**{place: fail}, reusable=reusable)
        engine = engine_of(tokenizer, [UP, UP], world)
        assert engine.roll_out([Attempt(counting(), 0.0, 1)])[0].is_void == (place != "close")
        del engine
        gc.collect()
        assert world.made == world.closed


def swallow_all(*_):
    while True:
        with suppress(BaseException):
            time.sleep(3600)


async def ignore_cancelling(*_):
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def block_the_loop(*_):
    while True:
        pass


HANGS = {
    "sleeps": lambda *_: time.sleep(3600), "waits": lambda *_: threading.Event().wait(), "swallows": swallow_all,
    "backtracks": lambda *_: re.match("^(a+)+$", "a" * 60 + "b"), "awaits": lambda *_: asyncio.sleep(3600),
    "ignores": ignore_cancelling, "blocks": block_the_loop, "thread": lambda *_: asyncio.to_thread(time.sleep, 3600),
}  # fmt: skip


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("kind", ["own", "reusable", "shared"])
@pytest.mark.parametrize("hang", HANGS)
def test_a_method_that_never_returns_makes_the_trajectory_void(tokenizer, hang, kind, capfd, monkeypatch):
    monkeypatch.setattr(event_loops, "_ANSWER_S", 0.2)
    monkeypatch.setattr(instances, "_CLOSE_S", 0.2)
    for place in ("reset", "call", "score", *(["close"] if hang != "backtracks" else [])):  # the collector may close it
        world = fresh(**{place: HANGS[hang], kind: True})
        options = {"max_instances": 2, "timeout_s": 0.1}
        engine = engine_of(tokenizer, [UP, UP], cache(world) if kind == "shared" else world, **options)
        start = time.monotonic()
        (trajectory,) = engine.roll_out([Attempt(counting(), 0.0, 1)])
        assert trajectory.is_void == (place != "close")
        assert place == "close" or "did not return within 0.1 s" in trajectory.meta["crash"]
        del engine  # closes its instances
        assert time.monotonic() - start < 30
    assert roll_out(tokenizer, [UP, UP], fresh()).valid


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Panic(BaseException):
    """As of a library in Rust."""


def raising(error):
    def fail(self, *_):
        raise error

    return fail


@pytest.mark.parametrize("place", ["reset", "call", "score", "close", "__init__", "take_metrics"])
def test_any_exception_of_a_world_is_its_crash(tokenizer, place, capfd):
    errors = [RuntimeError("no memory for a world"), Unprintable(), Panic("x\x1b[2J" * 999), GeneratorExit()]
    for error in (*errors, StopIteration(1), BaseExceptionGroup("", [Panic()])):
        made = []

        def fail(self, *_, error=error, made=made):
            made.append(self)
            self.is_closed = False
            if place != "__init__" or len(made) > 1:  # the first instance provides the tools
                raise error

        engine = engine_of(tokenizer, [UP, UP], fresh(**{place: fail}))
        trajectories = engine.roll_out(attempts(2))
        engine.tool_metrics()
        expected = {"close": 0, "take_metrics": 0, "__init__": 1}.get(place, 2)
        assert sum(trajectory.is_void for trajectory in trajectories) == expected
    printed = capfd.readouterr().err
    assert "no memory for a world" in printed
    assert "\x1b" not in printed and max(map(len, printed.splitlines())) <= 1000


@pytest.mark.parametrize("steps", [
    [Step("x", reward=1e308)] * 3, [Step("x", reward=9e14)] * 3, [Step("x", reward=1e308, done=True)],
    [Step("x", reward=10**400)], [Step("x", done=np.array([True, False]))], [Step("x", reward=np.array([1.0, 2.0]))],
], ids=lambda steps: repr(steps[0]))  # fmt: skip
def test_a_reward_or_an_end_that_is_not_one_number_is_a_crash(tokenizer, steps, capfd):
    def call(self, name, arguments):
        self.value += 1
        return steps[self.value - 1] if self.value <= len(steps) else Step("x", done=True)

    void = roll_out(tokenizer, [UP] * 4, fresh(call=call))
    assert void.is_void and "reward" not in void.meta
    json.dumps(void.to_record(), allow_nan=False)


@pytest.mark.parametrize(("attributes", "words"), [
    *(({"tools": tools}, "environment.name: ") for tools in (None, {}, "act", property(raising(Panic())))),
    ({"needs_answer": property(raising(Unprintable()))}, "environment.name: "),
    ({"tools": Counter.tools * 2}, "environment.name: "),
    ({"tools": [tool_schema("", "", {})]}, "environment.name: "),
    ({"tools": [tool_schema("act", b"", {})]}, "environment.name: "),
    ({"tools": [{"name": "act"}]}, "environment.name: tool 1 is not in OpenAI's function form"),
    ({"tools": [tool_schema("act", "", {"x": {"type": "text"}})]}, "tool act are not a valid JSON schema"),
    ({"shared": np.array([1, 2])}, "environment.name: "),
], ids=range(11))  # fmt: skip
def test_attributes_that_cannot_work_are_refused_in_one_line(tokenizer, attributes, words):
    world = fresh(**attributes)
    with pytest.raises(UserError, match=words) as error:
        engine_of(tokenizer, [], world)
    assert "\n" not in str(error.value) and world.made == 1
    assert "shared" in attributes or world.closed == 1


def test_a_text_of_another_class_is_read_as_plain_text(tokenizer):
    """Markup of Jinja would escape the chat template's own marks."""
    texts = {"reset": lambda self, query: Markup("<b>seen</b>"), "call": lambda self, *call: Markup("<i>found</i>")}
    world = fresh(may_stop=True, **texts)
    trajectory = roll_out(tokenizer, [UP, ANSWER], world)
    assert {type(message["content"]) for message in trajectory.messages} == {str}
    assert "<b>seen" in trajectory.messages[0]["content"] and "&lt;" not in tokenizer.decode(trajectory.completion_ids)


@pytest.mark.parametrize("metrics", [{"depth": 3.0}, {"depth": ["deep"]}, 7, UserError("enough")], ids=repr)
def test_malformed_metrics_leave_no_world_open(tokenizer, metrics, capfd):
    def take_metrics(self):
        if isinstance(metrics, Exception):
            raise metrics
        return metrics

    world = fresh(take_metrics=take_metrics)
    engine = engine_of(tokenizer, [UP, UP], world)
    if isinstance(metrics, Exception):
        with pytest.raises(UserError, match="enough"):
            engine.roll_out([Attempt(counting(), 0.0, 1)])
    else:
        assert engine.roll_out([Attempt(counting(), 0.0, 1)])[0].valid and engine.tool_metrics() == {}
    assert world.made == world.closed == 1


@pytest.mark.parametrize("reusable", [False, True])
def test_an_interrupted_rollout_closes_its_worlds(tokenizer, reusable):
    class Stops(fresh(reusable=reusable)):
        async def call(self, name, arguments):
            while type(self).made < 3:
                await asyncio.sleep(0)
            if self.goal == 1:
                raise UserError("enough")
            await asyncio.sleep(60)

    with pytest.raises(UserError, match="enough"):
        engine_of(tokenizer, [UP, UP], Stops, timeout_s=60).roll_out(
            [Attempt(counting(goal), 0.0, 1) for goal in (1, 2, 3)]
        )
    assert Stops.made == Stops.closed == 3


def test_text_actions_need_one_tool(tokenizer, compact):
    for world, names in ((compact, "search_poi, .*"), (NoTools(), "none")):
        problem = f"environment.actions=text needs an environment with one tool .* this one has {names}; set"
        with pytest.raises(UserError, match=problem):
            engine_of(tokenizer, [], lambda world=world: world, actions="text")


@pytest.mark.parametrize("shared", [False, True])
def test_a_temporary_environment_is_closed(shared):
    world = fresh(shared=shared)
    with temporary_environment(world) as environment:
        assert environment.tools is Counter.tools and not world.closed
    assert (world.made, world.closed) == (1, not shared)


THOUGHT = "Thought:\nUp.\n\nAction:\n"


def test_text_actions_have_an_exact_mask(tokenizer):
    turns = [THOUGHT + "up", "I do nothing.", f"{THOUGHT}up\nAction: up", f"<think>\nhm\n</think>\n\n{THOUGHT}up"]
    trajectory = roll_out(tokenizer, turns, fresh(), actions="text")
    two = "\n".join([ONE_ACTION] * 2)
    assert observations_of(trajectory) == [["It stands at 1."], [NO_ACTION], [two], ["It stands at 2."]]
    roles = {message["role"] for message in trajectory.messages}
    assert trajectory.stop_reason == "done" and roles == {"user", "assistant"}
    assert read_turns(trajectory.messages)[0].thought == "Up."
    own = [token for token, is_own in zip(trajectory.completion_ids, trajectory.policy_mask_T, strict=True) if is_own]
    assert tokenizer.decode(own) == "".join(f"{turn}<|im_end|>" for turn in turns)
    assert "<tool_response>" not in tokenizer.decode(trajectory.completion_ids)
    assert read_turns(Trajectory.from_record(trajectory.to_record()).messages) == read_turns(trajectory.messages)


def test_text_actions_work_with_a_chat_template_whose_roles_must_alternate(tokenizer):
    alternating = copy.deepcopy(tokenizer)
    alternating.chat_template = """{%- for m in messages %}{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}{%- endif %}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}
        {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""  # noqa: E501
    twice = f"{THOUGHT}up\nAction: down"
    for one_call in (True, False):
        world, turns = fresh(one_call_a_turn=one_call), [twice, f"{THOUGHT}up", f"{THOUGHT}up"]
        trajectory = roll_out(alternating, turns, world, actions="text")
        assert trajectory.stop_reason == "done" and trajectory.meta["tool_calls"] == 4
        results = [ONE_ACTION] * 2 if one_call else ["It stands at 1.", "It stands at 0."]
        assert observations_of(trajectory)[0] == ["\n".join(results)]
        ids = trajectory.prompt_ids + trajectory.completion_ids
        assert alternating.apply_chat_template(trajectory.messages, return_dict=False)[: len(ids)] == ids


MENTION = "Thought: My last Action: go north failed."


@pytest.mark.parametrize(("text", "actions", "thought"), [
    (f"{MENTION}\nAction: south", ["south"], "My last Action: go north failed."), (MENTION, [], ""),
    ("Thought: go\n**Action:** look", ["look"], "go"), ("Thought: go\n  Action:\nlook\r\n", ["look"], "go"),
    ("Thought: Interaction: none.\nAction: say Action: now", ["say Action: now"], "Interaction: none."),
])  # fmt: skip
def test_an_action_begins_a_line_and_a_mention_within_a_line_does_not_count(text, actions, thought):
    turn = parse_turn(action_message(text, ("act", "action")))
    assert ([call.arguments["action"] for call in turn.tool_calls], turn.thought) == (actions, thought)


def test_sft_teaches_text_actions_in_the_form_that_rollouts_take(tokenizer, tmp_path):
    taught = roll_out(tokenizer, [UP, DOWN, UP, UP], fresh())
    write_jsonl(tmp_path / "sft.jsonl", [taught.to_record()])
    (row,) = tokenize_trajectories(tmp_path / "sft.jsonl", tokenizer, None, 10_000, None, "text")
    turns, turn = [], []
    for token in (token for token in row["labels"] if token != -100):
        turn.append(token)
        if token == tokenizer.eos_token_id:
            turns.append(tokenizer.decode(turn[:-1]))
            turn = []
    again = roll_out(tokenizer, turns, fresh(), actions="text")
    assert again.prompt_ids + again.completion_ids == row["input_ids"][: len(again.prompt_ids + again.completion_ids)]
    assert observations_of(again) == observations_of(taught) and again.meta["reward"] == taught.meta["reward"]


def test_worlds_of_an_engine_that_is_freed_in_a_running_loop_are_closed(tokenizer):
    world = fresh(reusable=True)

    async def forget():
        engine = engine_of(tokenizer, [], world)
        del engine
        gc.collect()

    asyncio.run(forget())
    assert world.made == world.closed == 1
