"""A loop in its own thread outlives its callers' loops, and concurrent calls share one task."""

import asyncio
import gc
import os
import threading

import pytest

from arenarl.system.event_loops import InFlight, LoopThread


async def here():
    return threading.current_thread().name, asyncio.get_running_loop()


async def fail():
    raise LookupError("in the thread")


@pytest.fixture
def thread():
    thread = LoopThread("ours")
    yield thread
    thread.close()


def test_one_loop_serves_all_callers_and_raises_an_error_in_the_waiting_one(thread):
    places = {asyncio.run(thread.run(here())), asyncio.run(thread.run(here())), thread.submit(here()).result()}
    assert len(places) == 1 and {name for name, _ in places} == {"ours"}
    with pytest.raises(LookupError, match="in the thread"):
        asyncio.run(thread.run(fail()))


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_coroutine_ends_only_its_waiter(thread, end):
    async def leave():
        raise end("no more")

    with pytest.raises(end, match="no more"):
        thread.submit(leave()).result(60)
    assert thread.submit(here()).result(60)[0] == "ours"


def test_cancelling_a_waiter_cancels_its_coroutine(thread):
    is_over = threading.Event()

    async def long():
        try:
            await asyncio.sleep(600)
        finally:
            is_over.set()

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(thread.run(long()), 0.1))
    assert is_over.wait(60)


def test_a_coroutine_that_is_cancelled_before_it_starts_causes_no_warning(thread, recwarn):
    gc.collect()
    recwarn.clear()  # warnings about objects of earlier tests

    async def many():
        waiters = [asyncio.create_task(thread.run(asyncio.sleep(0.01))) for _ in range(300)]
        await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()
        return await asyncio.gather(*waiters, return_exceptions=True)

    assert all(isinstance(end, asyncio.CancelledError) for end in asyncio.run(many()))
    thread.submit(here()).result(60)
    gc.collect()
    assert not list(recwarn)


def test_a_deleted_loop_finishes_its_coroutine_and_leaves_no_thread_and_no_open_file_behind():
    files = os.listdir("/proc/self/fd")
    threads = [LoopThread("forgotten") for _ in range(20)]
    assert {thread.submit(here()).result()[0] for thread in threads} == {"forgotten"}
    assert len(os.listdir("/proc/self/fd")) >= len(files) + 20
    del threads
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "forgotten":
            thread.join(60)
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    thread = LoopThread("brief")
    thread.submit(here()).result()
    thread.close()
    assert "brief" not in {one.name for one in threading.enumerate()}
    future = LoopThread("forgotten").submit(asyncio.sleep(0.2, "done"))
    gc.collect()
    assert future.result(60) == "done"


class Making:
    """Returns its number of calls once `may_go_on` is set; the first `failures` calls fail."""

    def __init__(self, failures=0):
        self.failures, self.calls, self.may_go_on = failures, 0, asyncio.Event()

    async def make(self):
        self.calls += 1
        number = self.calls
        await self.may_go_on.wait()
        if number <= self.failures:
            raise LookupError(f"call {number}")
        return number


async def start_waiters(in_flight, making, count):
    waiters = [asyncio.create_task(in_flight.get("k", making.make)) for _ in range(count)]
    await asyncio.sleep(0)
    assert "k" in in_flight and "other" not in in_flight
    return waiters


def test_concurrent_waiters_share_one_call_or_failure_which_is_not_kept():
    async def main():
        in_flight, making = InFlight(), Making()
        waiters = await start_waiters(in_flight, making, 5)
        making.may_go_on.set()
        assert await asyncio.gather(*waiters, in_flight.get("other", making.make)) == [1] * 5 + [2]
        assert "k" not in in_flight and await in_flight.get("k", making.make) == 3
        making = Making(failures=1)
        waiters = await start_waiters(in_flight, making, 3)
        making.may_go_on.set()
        assert [str(error) for error in await asyncio.gather(*waiters, return_exceptions=True)] == ["call 1"] * 3
        assert await in_flight.get("k", making.make) == 2

    asyncio.run(main())


@pytest.mark.parametrize("others", [0, 2])
def test_cancelling_one_waiter_does_not_cancel_the_others(others):
    async def main():
        in_flight, making = InFlight(), Making()
        first, *rest = await start_waiters(in_flight, making, 1 + others)
        first.cancel()
        await asyncio.sleep(0)
        assert first.cancelled() and "k" in in_flight
        later = asyncio.create_task(in_flight.get("k", making.make))
        making.may_go_on.set()
        assert await asyncio.gather(*rest, later) == [1] * (others + 1)

    asyncio.run(main())
