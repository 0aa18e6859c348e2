"""Worlds that run in processes of their own: dear to start, so that one serves one trajectory after another, and waited for in threads."""

import asyncio
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Self

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym.items import TOOLS
from arenarl.domains.agentgym.world import World
from arenarl.rollout.environment import Step
from arenarl.trajectory import Query

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient


class Apart:
    """An `Environment` over a world that starts with the first `reset`, in seconds."""

    tools = TOOLS
    reusable = True
    needs_answer = False
    one_call_a_turn = True
    world_class: ClassVar[type[World]]

    def __init__(self) -> None:
        self._is_closed, self._changing = False, Lock()

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> Self:
        """Raises UserError if the world needs what is not installed."""
        cls.world_class.check_packages()
        return cls()

    @cached_property
    def world(self) -> Any:
        """Raises RuntimeError after `close`."""
        with self._changing:
            if self._is_closed:
                raise RuntimeError("this world is closed")
            return self.world_class()

    async def reset(self, query: Query) -> str:
        return await asyncio.to_thread(lambda: self.world.reset(query))

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        return await asyncio.to_thread(self.world.call, name, arguments)

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
        if world := self.__dict__.pop("world", None):
            world.close()
