"""Clock times and other facts in the spellings of real plans, and texts that only look like facts."""

import pytest

from arenarl.domains.stated_facts import clocks_of, read_facts, with_clocks


@pytest.mark.parametrize(("text", "clocks"), [
    ("9:00 AM: the museum", [9 * 60]),
    ("9:00: the museum", [9 * 60]),
    ("下午2:00：参观", [14 * 60]),
    ("下午2：30：参观", [14 * 60 + 30]),
    ("Day 1 - 9:00 AM: the museum", [9 * 60]),
    ("### Day 1\n- 9:00 AM: the museum", [9 * 60]),
    ("May 3 - 9:30 am", [9 * 60 + 30]),
    ("2026-05-03-9 am", [9 * 60]),
    ("Table for 2 - 7:30 pm", [19 * 60 + 30]),
    ("Stop 2 - 10:30 am, Mar 3 - 9 pm", [10 * 60 + 30, 21 * 60]),
    ("Dinner 6 - 8 pm", [18 * 60, 20 * 60]),
    ("open 5-6 pm, 2:00 - 4:00 PM", [17 * 60, 18 * 60, 14 * 60, 16 * 60]),
    ("from 9:00 to 5 PM", [9 * 60, 17 * 60]),
    ("9:00\n- 10:00 PM", [9 * 60, 22 * 60]),
    ("最晚9:30出发，早晚8:00", [9 * 60 + 30, 8 * 60]),
    ("今晚8点，晚上9:30", [20 * 60, 21 * 60 + 30]),
    ("2:30 p.m., 12 AM, 下午2点", [14 * 60 + 30, 0, 14 * 60]),
    ("晚上七点半，晚上7：00，下午2:00-4:00", [19 * 60 + 30, 19 * 60, 14 * 60, 16 * 60]),
    ("下午2点半到4点，上午9点至下午五点", [14 * 60 + 30, 16 * 60, 9 * 60, 17 * 60]),
    ("1:23:45", []),
])  # fmt: skip
def test_clock_times_are_found_in_every_spelling(text, clocks):
    assert clocks_of(text) == clocks, with_clocks(text)


@pytest.mark.parametrize(("text", "facts"), [
    ("30 yuans", [("price", 30.0)]),
    ("walk 1 hour, 50 m", [("duration", 60.0), ("distance", 50.0)]),
    ("1h 20m, 1 hr., 20 min", [("duration", 80), ("duration", 80)]),
    ("1h, 20m", [("duration", 80)]),
    ("open 2 – 4 PM", [("hours", (14 * 60, 16 * 60))]),
    ("10-12/2-4 pm", [("hours", (14 * 60, 16 * 60)), ("number", 10.0), ("number", 12.0)]),
    ("May 3: the museum", [("date", (None, 5, 3))]),
    ("Day 1 - 9:00 AM: the museum", [("clock", 540), ("number", 1.0)]),
])  # fmt: skip
def test_facts_are_found_by_their_form(text, facts):
    assert [(fact.kind, fact.value) for fact in read_facts(text)] == facts
