"""ART (openpipe-art) with the tournament as its reward: each query is answered several times, and the group is ranked.

pip install openpipe-art==0.5.18 .
python examples/art_tournament.py --policy http://localhost:8000/v1 --model Qwen/Qwen3-1.7B --judge openai
"""

import argparse
import asyncio

import art
from openai import AsyncOpenAI

from arenarl.integrations.art import reward_groups
from arenarl.rank import Ranker

QUERIES = ["Plan a quiet day in Kyoto.", "Explain tides to a child.", "Write a toast for a retiring gardener."]


async def roll_out(client: AsyncOpenAI, model: str, query: str) -> art.Trajectory:
    prompt = {"role": "user", "content": query}
    completion = await client.chat.completions.create(model=model, messages=[prompt], logprobs=True)
    return art.Trajectory(messages_and_choices=[prompt, completion.choices[0]], reward=0.0)


async def main(arguments: argparse.Namespace) -> list[art.TrajectoryGroup]:
    client = AsyncOpenAI(base_url=arguments.policy, api_key="none")
    ranker = Ranker(arguments.judge, rubric=arguments.rubric, topology=arguments.topology)
    groups = [
        art.TrajectoryGroup(roll_out(client, arguments.model, query) for _ in range(arguments.size))
        for query in QUERIES
    ]
    return await art.gather_trajectory_groups(groups, after_each=reward_groups(ranker))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--policy", required=True, help="address of an OpenAI-compatible server with the policy")
    parser.add_argument("--model", required=True)
    parser.add_argument("--judge", default="openai")
    parser.add_argument("--rubric", default="helpful, true and well written")
    parser.add_argument("--topology", default="seeded_single_elimination")
    parser.add_argument("--size", type=int, default=8)
    for group in asyncio.run(main(parser.parse_args())):
        print([round(trajectory.reward, 2) for trajectory in group.trajectories])  # train: await model.train(groups)
