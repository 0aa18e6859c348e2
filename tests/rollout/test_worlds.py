"""Environments with a state: an instance a trajectory, first observations, ends, rewards, crashes, actions as text."""

import asyncio
import copy
import gc
import threading
from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest
from policies import ANSWER, Scripted, call, think
from worlds import Counter, mortal

from arenarl.config.schema import RolloutConfig
from arenarl.rollout.engine import NO_ACTION, ONE_ACTION, Attempt, RolloutEngine
from arenarl.rollout.environment import Step, tool_schema
from arenarl.rollout.instances import temporary_environment
from arenarl.rollout.text_actions import action_message
from arenarl.system.errors import UserError
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.trajectory import Query, Trajectory, parse_turn, read_turns, write_jsonl

LIMITS = RolloutConfig(group_size=4, max_turns=4, max_tokens=600, max_turn_tokens=200)
UP, DOWN = call("act", action="up"), call("act", action="down")


def counting(goal=2, query_id="q"):
    return Query(query_id, "counter", "small", "en", f"Task {query_id}.", {"goal": goal})


def fresh(**attributes):
    """A class of counters that counts for itself."""
    return type("Fresh", (Counter,), {"made": 0, "closed": 0, **attributes})


def engine_of(tokenizer, turns, world, config=LIMITS, **options):
    scripts = turns if isinstance(turns, dict) else {"Task": turns}
    return RolloutEngine(Scripted(tokenizer, scripts), tokenizer, world, config, schemas_in_prompt=False, **options)


def roll_out(tokenizer, turns, world, query=None, config=LIMITS, **options):
    return engine_of(tokenizer, turns, world, config, **options).roll_out([Attempt(query or counting(), 0.0, 1)])[0]


def attempts(count, goal=2):
    return [Attempt(counting(goal, str(number)), 0.0, number) for number in range(count)]


def seen(trajectory):
    return [turn.observations for turn in read_turns(trajectory.messages)]


def test_a_world_shows_itself_first_and_ends_the_trajectory_with_a_reward(tokenizer):
    world = fresh()
    trajectory = roll_out(tokenizer, [UP, UP, UP], world)
    assert trajectory.messages[0]["content"] == "Task q.\n\nThe counter stands at 0. Goal: 2."
    assert "Task q.\n\nThe counter stands at 0. Goal: 2.<|im_end|>" in tokenizer.decode(trajectory.prompt_ids)
    assert (trajectory.stop_reason, trajectory.valid, trajectory.meta["turns"]) == ("done", True, 2)
    assert trajectory.meta["reward"] == pytest.approx(1.2)
    assert seen(trajectory) == [["It stands at 1."], ["It stands at 2."]]
    # what no turn followed teaches nothing
    assert trajectory.policy_mask_T[-1] == 1 and (world.made, world.closed) == (1, 1)


def test_when_the_turns_are_up_a_world_has_its_say_and_a_question_does_not(tokenizer):
    assert roll_out(tokenizer, [UP, DOWN, UP, DOWN], fresh()).stop_reason == "horizon"
    # rollout.turn_schedule
    (short,) = engine_of(tokenizer, [UP, DOWN, UP], fresh()).roll_out([Attempt(counting(), 0.0, 1, max_turns=2)])
    assert (short.stop_reason, short.meta["turns"], short.meta["reward"]) == ("horizon", 2, 0.2)
    late = roll_out(tokenizer, [UP, DOWN, UP, DOWN], fresh(needs_answer=True))
    assert late.stop_reason == "max_turns" and not late.valid


def test_a_turn_without_an_action_or_with_two_is_told_so_and_the_world_goes_on(tokenizer):
    two = think(UP.partition("\n\n")[2] + "\n" + UP.partition("\n\n")[2])
    trajectory = roll_out(tokenizer, [ANSWER, two, UP, UP], fresh())
    assert seen(trajectory) == [[NO_ACTION], [ONE_ACTION] * 2, ["It stands at 1."], ["It stands at 2."]]
    assert trajectory.stop_reason == "done" and trajectory.meta["tool_errors"] == 3
    assert roll_out(tokenizer, [UP, ANSWER], fresh(may_stop=True)).stop_reason == "done"
    three = think("\n".join([UP.partition("\n\n")[2]] * 3))  # calls behind the one that ends it are not made
    ended = roll_out(tokenizer, [three], fresh(one_call_a_turn=False))
    assert ended.stop_reason == "done" and seen(ended) == [["It stands at 1.", "It stands at 2."]]


def test_a_world_s_own_score_stands_in_place_of_the_sum(tokenizer):
    async def score(self):
        return self.value / 10

    assert roll_out(tokenizer, [UP, UP], fresh(score=score)).meta["reward"] == 0.2
    assert roll_out(tokenizer, [UP, UP], fresh(score=lambda self: None)).meta["reward"] == pytest.approx(1.2)
    assert roll_out(tokenizer, [UP, UP], fresh(score=lambda self: float("nan"))).is_void
    assert roll_out(tokenizer, [UP, UP], fresh(score=7)).meta["reward"] == pytest.approx(1.2)  # a game's own figure


def test_rewards_come_to_the_same_in_whatever_order_they_came(tokenizer):
    def call(self, name, arguments):
        return Step("x", done=not self.left, reward=self.left.pop() if self.left else 0.0)

    world = fresh(call=call, reset=lambda self, query: setattr(self, "left", query.constraints["rewards"]))
    orders = permutations((0.1, 0.2, 0.7, 1e9))
    orders = [Query(str(o), "counter", "small", "en", "Task.", {"rewards": list(o)}) for o in orders]
    engine = engine_of(tokenizer, [UP] * 5, world, replace(LIMITS, max_turns=5))
    trajectories = engine.roll_out([Attempt(query, 0.0, 1) for query in orders])
    assert len({trajectory.meta["reward"] for trajectory in trajectories}) == 1
    assert all(len(query.constraints["rewards"]) == 4 for query in orders)  # the world used up a copy


@pytest.mark.parametrize("seen", [7, ("x", {"info": 1})], ids=repr)
def test_what_cannot_be_shown_first_ends_the_run_in_one_line(tokenizer, seen):
    world = fresh(reset=lambda self, query: seen)
    kind = type(seen).__name__
    with pytest.raises(UserError, match=f"reset must return the text that is seen first, or None, not a {kind}"):
        roll_out(tokenizer, [UP, UP], world)
    assert world.made == world.closed


def test_instances_are_a_trajectory_s_own_or_shared_or_used_again(tokenizer):
    for attributes, made in (({}, 6), ({"reusable": True}, 1), ({"shared": True}, 1)):
        world = fresh(**attributes)
        engine = engine_of(tokenizer, [UP, UP], cache(world) if attributes.get("shared") else world, most_instances=2)
        trajectories = engine.roll_out(attempts(6))
        assert world.made == made
        if "shared" not in attributes:
            assert [trajectory.stop_reason for trajectory in trajectories] == ["done"] * 6
            assert world.made - world.closed == (1 if attributes else 0)
        del engine
        gc.collect()
        assert world.made - world.closed == attributes.get("shared", 0)  # what is used again closes with the engine


class Served(Counter):
    """Its answers come from a task of its own, as a client's of a socket do, and wait in a loop."""

    async def reset(self, query):
        if not hasattr(self, "task"):
            self.asked, self.told = asyncio.Queue(), asyncio.Queue()
            self.task = asyncio.create_task(self.serve())
        return super().reset(query)

    async def serve(self):
        while True:
            await self.told.put(await self.asked.get())

    async def call(self, name, arguments):
        await self.asked.put(arguments)
        return super().call(name, await self.told.get())

    async def close(self):
        self.task.cancel()
        super().close()


@pytest.mark.parametrize("kind", ["reusable", "shared"])
def test_what_an_instance_waits_for_outlives_a_rollout_as_it_does(tokenizer, kind):
    world = type("Fresh", (Served,), {"made": 0, "closed": 0, kind: True})
    engine = engine_of(tokenizer, [UP, UP], world)
    for _ in range(3):
        (trajectory,) = engine.roll_out([Attempt(counting(), 0.0, 1)])
        assert trajectory.stop_reason == "done" and "begun_again" not in trajectory.meta
    del engine
    gc.collect()
    assert world.made == 1 and world.closed == (kind == "reusable")


def test_a_call_that_is_not_async_is_answered_at_once_also_by_what_is_used_again(tokenizer):
    called = set()

    class Plain(fresh(reusable=True)):
        def call(self, name, arguments):
            called.add(threading.current_thread())
            return super().call(name, arguments)

    engine_of(tokenizer, [UP, UP], Plain).roll_out(attempts(3))
    assert called == {threading.current_thread()}


def test_what_broke_one_may_have_broken_all_that_are_idle(tokenizer, capfd):
    class Connected(fresh(reusable=True)):
        server = 1

        def __init__(self):
            super().__init__()
            self.connected_to = self.server

        def call(self, name, arguments):
            if self.connected_to != self.server:
                raise ConnectionError("the server was started anew")
            return super().call(name, arguments)

    engine = engine_of(tokenizer, [UP, UP], Connected, most_instances=4)
    engine.roll_out(attempts(8))
    Connected.server += 1
    for trajectories in (engine.roll_out(attempts(1)), engine.roll_out(attempts(8))):
        assert all(trajectory.stop_reason == "done" for trajectory in trajectories)
        assert Connected.made - Connected.closed <= 4


def test_no_more_are_at_work_at_once_than_may_be(tokenizer):
    at_work = []

    class Slow(fresh()):
        async def call(self, name, arguments):
            at_work.append(type(self).made - type(self).closed)
            await asyncio.sleep(0)
            return super().call(name, arguments)

    engine_of(tokenizer, [UP, UP], Slow, most_instances=3).roll_out(attempts(9))
    assert max(at_work) <= 3 and Slow.made == Slow.closed == 9


def test_a_trajectory_whose_world_dies_begins_once_more_and_is_void_if_that_dies_too(tokenizer, capfd):
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

    again = roll_out(tokenizer, [UP, UP], DiesOnce)
    assert again.valid and again.meta["begun_again"] == "ConnectionError: once"
    whole = roll_out(tokenizer, [UP, UP], fresh())
    assert (again.messages, again.completion_ids) == (whole.messages, whole.completion_ids)
    assert again.meta["reward"] == whole.meta["reward"]


def test_nothing_leaks_and_no_reward_is_invented_however_often_worlds_die(tokenizer, capfd):
    world = mortal(0.3, fresh())
    engine = engine_of(tokenizer, [UP, UP, UP], world)
    trajectories = engine.roll_out(attempts(40, goal=3))
    assert world.made == world.closed and world.deaths > 0
    for trajectory in trajectories:
        assert trajectory.is_void != ("reward" in trajectory.meta)
        assert trajectory.is_void or trajectory.meta["reward"] == pytest.approx(1.3)


@pytest.mark.parametrize("broken", ["reset", "close", "__init__"])
def test_a_world_that_fails_beside_its_calls_ends_no_run(tokenizer, broken, capfd):
    made = []

    def fail(self, *_):
        made.append(self)
        self.is_closed = False
        if broken != "__init__" or len(made) > 1:  # the first tells the tools
            raise RuntimeError("no memory for a world")

    world = fresh(**{broken: fail})
    trajectories = engine_of(tokenizer, [UP, UP], world).roll_out(attempts(3))
    assert sum(trajectory.is_void for trajectory in trajectories) == {"reset": 3, "close": 0, "__init__": 2}[broken]
    assert "no memory for a world" in capfd.readouterr().err


@pytest.mark.parametrize("end", [SystemExit("no more"), asyncio.CancelledError("a task of the world's")], ids=repr)
@pytest.mark.parametrize("place", ["reset", "call", "score", "close"])
def test_a_world_that_would_end_the_process_ends_its_trajectory(tokenizer, end, place, capfd):
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


@pytest.mark.parametrize("told", [{"depth": 3.0}, {"depth": ["deep"]}, 7, UserError("enough")], ids=repr)
def test_metrics_that_are_none_leave_no_world_open(tokenizer, told, capfd):
    def take_metrics(self):
        if isinstance(told, Exception):
            raise told
        return told

    world = fresh(take_metrics=take_metrics)
    engine = engine_of(tokenizer, [UP, UP], world)
    if isinstance(told, Exception):
        with pytest.raises(UserError, match="enough"):
            engine.roll_out([Attempt(counting(), 0.0, 1)])
    else:
        assert engine.roll_out([Attempt(counting(), 0.0, 1)])[0].valid and engine.tool_metrics() == {}
    assert world.made == world.closed == 1


@pytest.mark.parametrize("reusable", [False, True])
def test_an_interrupted_rollout_closes_its_worlds(tokenizer, reusable):
    class Stops(fresh(reusable=reusable)):
        async def call(self, name, arguments):
            if self.goal == 1:
                await asyncio.sleep(0.01)
                raise UserError("enough")
            await asyncio.sleep(60)

    with pytest.raises(UserError, match="enough"):
        engine_of(tokenizer, [UP, UP], Stops).roll_out([Attempt(counting(goal), 0.0, 1) for goal in (1, 2, 3)])
    assert Stops.made == Stops.closed == 3


def test_tools_that_are_no_tools_are_refused_at_the_start(tokenizer):
    wrong = tool_schema("act", "", {"x": {"type": "text"}})
    unnamed, no_schema = "tool 1 is not in OpenAI's function form", "tool act are no JSON schema"
    for tools, said in (([{"name": "act"}], unnamed), ([wrong], no_schema)):
        world = fresh(tools=tools)
        with pytest.raises(UserError, match=said):
            engine_of(tokenizer, [], world)
        assert world.made == world.closed == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_temporary_environment_is_closed(shared):
    world = fresh(shared=shared)
    with temporary_environment(world) as environment:
        assert environment.tools is Counter.tools and not world.closed
    assert (world.made, world.closed) == (1, not shared)


THOUGHT = "Thought:\nUp.\n\nAction:\n"


def test_actions_can_be_text_and_the_mask_is_as_exact(tokenizer):
    turns = [THOUGHT + "up", "I do nothing.", f"{THOUGHT}up\nAction: up", f"<think>\nhm\n</think>\n\n{THOUGHT}up"]
    trajectory = roll_out(tokenizer, turns, fresh(), actions="text")
    assert seen(trajectory) == [["It stands at 1."], [NO_ACTION], ["\n".join([ONE_ACTION] * 2)], ["It stands at 2."]]
    assert trajectory.stop_reason == "done" and {message["role"] for message in trajectory.messages} == {
        "user",
        "assistant",
    }
    assert [turn.thought for turn in read_turns(trajectory.messages)][0] == "Up."
    own = [token for token, is_own in zip(trajectory.completion_ids, trajectory.policy_mask_T, strict=True) if is_own]
    assert tokenizer.decode(own) == "".join(f"{turn}<|im_end|>" for turn in turns)
    assert "<tool_response>" not in tokenizer.decode(trajectory.completion_ids)
    assert read_turns(Trajectory.from_record(trajectory.to_record()).messages) == read_turns(trajectory.messages)


def test_text_actions_go_with_a_chat_template_whose_roles_must_alternate(tokenizer):
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
        assert seen(trajectory)[0] == ["\n".join(results)]
        ids = trajectory.prompt_ids + trajectory.completion_ids
        assert alternating.apply_chat_template(trajectory.messages, return_dict=False)[: len(ids)] == ids


SPOKEN_OF = "Thought: My last Action: go north failed."


@pytest.mark.parametrize(
    ("text", "actions", "thought"),
    [
        (f"{SPOKEN_OF}\nAction: south", ["south"], "My last Action: go north failed."), (SPOKEN_OF, [], ""),
        ("Thought: go\n**Action:** look", ["look"], "go"), ("Thought: go\n  Action:\nlook\r\n", ["look"], "go"),
        ("Thought: Interaction: none.\nAction: say Action: now", ["say Action: now"], "Interaction: none."),
    ],
)  # fmt: skip
def test_an_action_begins_a_line_and_what_is_spoken_of_within_one_is_none(text, actions, thought):
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
    assert seen(again) == seen(taught) and again.meta["reward"] == taught.meta["reward"]


def test_text_actions_need_one_tool_that_takes_one_text(tokenizer, compact):
    with pytest.raises(UserError, match="environment.actions=text needs an environment with one tool"):
        engine_of(tokenizer, [], lambda: compact, actions="text")


def test_worlds_of_an_engine_that_is_forgotten_while_a_loop_runs_are_closed(tokenizer):
    world = fresh(reusable=True)

    async def forget():
        engine = engine_of(tokenizer, [], world)
        del engine
        gc.collect()

    asyncio.run(forget())
    assert world.made == world.closed == 1
