"""verifiers and prime-rl: an environment whose attempts at a task are ranked by a tournament, over any taskset.

    # my_tournament.py, on PYTHONPATH; then: vf-eval my-taskset --env.id my_tournament --env.rubric "…"
    from arenarl.integrations.verifiers import TournamentEnv
    __all__ = ["TournamentEnv"]

An episode is `n` attempts at one task, as in verifiers' own best-of-n. Each trace gets the reward `tournament`: 1 for
the first, 0 for the last (Eq. 6). An episode with a missing verdict fails, because verifiers' rewards are numbers; it
can be retried (`--env.retries`), and replies from the store are free.
"""

import asyncio
from functools import cached_property
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from arenarl.integrations.groups import split_chats
from arenarl.rank import Ranker


class TournamentEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()
    n: int = Field(8, ge=2)
    judge: str = "openai"
    rubric: str | None = None
    topology: str = "seeded_single_elimination"
    weight: float = 1.0  # of the tournament beside the task's own rewards


class TournamentEnv(vf.Env[TournamentEnvConfig]):
    @cached_property
    def ranker(self) -> Ranker:
        """The judge and topology of the config. Override for a judge of your own, a budget or other parameters."""
        return Ranker(self.config.judge, rubric=self.config.rubric, topology=self.config.topology)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.n):
                group.create_task(agents.agent.run(task))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        if not all(trace.ok for trace in episode.traces):
            return  # the episode has failed with its attempt
        chats = [[as_openai(node.message) for node in trace.nodes] for trace in episode.traces]
        ranked = await self.ranker.rank(*split_chats(chats))
        if missing := ranked.rewards.count(None):
            raise RuntimeError(
                f"{missing} of {len(chats)} attempts have no rank; {ranked.failed_calls} verdicts failed"
            )
        for trace, reward, rank in zip(episode.traces, ranked.rewards, ranked.ranks, strict=True):
            trace.record_reward("tournament", reward, self.config.weight)
            trace.record_metric("rank", rank)


def as_openai(message: Any) -> dict[str, Any]:
    """Return a message of verifiers, whose tool calls are flat, in OpenAI's form."""
    fields = message.model_dump(exclude_none=True)
    if calls := fields.get("tool_calls"):
        functions = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        fields["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return fields
