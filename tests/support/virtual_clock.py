"""An event loop whose time jumps to the next timer, so that hours of waiting pass in milliseconds."""

import asyncio
import selectors


class VirtualClock(asyncio.SelectorEventLoop):
    """The event loop. It calls `before_jump()` before each jump, when nothing else can run."""

    def __init__(self, before_jump=lambda: None):
        self.now = 0.0
        self.before_jump = before_jump
        super().__init__(_JumpingSelector(self))

    def time(self):
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("deadlock: nothing can run and no timer is set")
        if timeout > 0:
            self.loop.before_jump()
            self.loop.now += timeout
        return super().select(0)


def run_on_virtual_clock(main, before_jump=lambda: None):
    """Return (the coroutine's result, the virtual seconds that passed)."""
    with asyncio.Runner(loop_factory=lambda: VirtualClock(before_jump)) as runner:
        start = runner.get_loop().time()
        return runner.run(main), runner.get_loop().time() - start
