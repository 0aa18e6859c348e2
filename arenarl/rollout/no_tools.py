"""No tools: a trajectory is the query, thinking and a text, in one turn. For writing."""

from typing import TYPE_CHECKING, Any

from arenarl.rollout.environment import Schema, ToolError

if TYPE_CHECKING:
    from arenarl.config.schema import EnvironmentConfig
    from arenarl.llm.client import LLMClient


class NoTools:
    """An `Environment`. A call is an error like any wrong call elsewhere."""

    shared = True
    tools: list[Schema] = []

    @classmethod
    def from_config(cls, config: "EnvironmentConfig", language: str, client: "LLMClient | None" = None) -> "NoTools":
        return cls()

    def reset(self, query: Any) -> None:
        pass

    def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        raise ToolError("there are no tools; reply with your text")
