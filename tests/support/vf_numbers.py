"""A taskset and harness of verifiers that run in this process: one model call a prompt, through the interception."""

import verifiers.v1 as vf
from openai import AsyncOpenAI
from shared_groups import GROUPS
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Call", "Numbers"]


class Numbers(vf.Taskset[vf.Task]):
    def load(self):
        for prompt, _ in GROUPS:
            yield vf.Task(vf.TaskData(prompt=prompt), self.config.task)


class Call(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(0, "", "")
