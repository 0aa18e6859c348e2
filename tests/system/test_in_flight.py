import asyncio

import pytest

from arenarl.system.event_loops import InFlight


class Making:
    """Makes its number of calls once it may go on; the first `failures` fail."""

    def __init__(self, failures=0):
        self.failures, self.calls, self.may_go_on = failures, 0, asyncio.Event()

    async def make(self):
        self.calls += 1
        number = self.calls
        await self.may_go_on.wait()
        if number <= self.failures:
            raise LookupError(f"call {number}")
        return number


async def ask(in_flight, making, count):
    asked = [asyncio.create_task(in_flight.get("k", making.make)) for _ in range(count)]
    await asyncio.sleep(0)
    assert "k" in in_flight and "other" not in in_flight
    return asked


def test_who_asks_while_it_is_made_gets_the_same_and_who_asks_later_does_not():
    async def main():
        in_flight, making = InFlight(), Making()
        asked = await ask(in_flight, making, 5)
        making.may_go_on.set()
        assert await asyncio.gather(*asked, in_flight.get("other", making.make)) == [1] * 5 + [2]
        assert "k" not in in_flight and await in_flight.get("k", making.make) == 3

    asyncio.run(main())


def test_a_failure_is_that_of_all_who_waited_and_is_not_kept():
    async def main():
        in_flight, making = InFlight(), Making(failures=1)
        asked = await ask(in_flight, making, 3)
        making.may_go_on.set()
        assert [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == ["call 1"] * 3
        assert await in_flight.get("k", making.make) == 2

    asyncio.run(main())


@pytest.mark.parametrize("others", [0, 2])
def test_who_gives_up_waiting_ends_it_for_nobody(others):
    async def main():
        in_flight, making = InFlight(), Making()
        first, *rest = await ask(in_flight, making, 1 + others)
        first.cancel()
        await asyncio.sleep(0)
        assert first.cancelled() and "k" in in_flight
        later = asyncio.create_task(in_flight.get("k", making.make))
        making.may_go_on.set()
        assert await asyncio.gather(*rest, later) == [1] * (others + 1)

    asyncio.run(main())
