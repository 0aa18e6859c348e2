"""Generated tokens a second of rollouts with real tool calls;
`bench_speed` runs it with one tree's modules, then with another's.

    PYTHONPATH=<a tree> python -P arenarl/studies/decode_probe.py --config configs/quickstart.yaml

Only what older commits have too is imported. The policy has random weights and ends no turn by itself; `Script` writes
tool calls and answers over what it says, so that every tree generates just as many tokens. The first rollouts are not
timed. The last line is JSON.
"""

import json
import tempfile
from pathlib import Path
from time import perf_counter

from arenarl.config.command_line import parse_arguments
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.generation import TransformersGenerator
from arenarl.rollout.policy import load_model, load_tokenizer
from arenarl.run.stage import fix_randomness
from arenarl.studies import scripted_policy
from arenarl.studies.scripted_policy import Script, build_policy

GROUPS, GROUP_SIZE, TURNS, TURN_TOKENS = 8, 8, 5, 64


def main() -> None:
    config, _ = parse_arguments(__doc__)
    config.rollout.group_size, config.rollout.max_turns, config.rollout.max_turn_tokens = GROUP_SIZE, TURNS, TURN_TOKENS
    config.rollout.max_tokens = 4 * TURNS * TURN_TOKENS  # observations included
    fix_randomness(config)
    scripted_policy.GOING_ON = 1.0  # every trajectory takes all its turns
    tools = make_environment(config.environment, config.data.language)
    taken = set()
    queries = [
        query
        for subtask in SUBTASKS
        for query in make_queries(tools.world, subtask, config.data.language, 40, "speed", taken)
    ]
    with tempfile.TemporaryDirectory() as folder:
        policy, _ = build_policy(config, "tiny", queries, Path(folder))
        tokenizer, model = load_tokenizer(policy), load_model(policy, config.policy.dtype).eval()
    generator = TransformersGenerator(model, tokenizer, config.rollout.batch_size)
    engine = RolloutEngine(generator, tokenizer, lambda: tools, config.rollout, config.environment.schemas_in_prompt)
    engine.generator.generate = Script(tokenizer, engine.generator.generate, TURNS)
    engine.roll_out_groups(queries[:1], seed=0)
    start = perf_counter()
    groups = engine.roll_out_groups(queries[1 :: len(queries) // GROUPS][:GROUPS], seed=1)
    seconds = perf_counter() - start
    tokens = sum(trajectory.meta["policy_tokens"] for group in groups for trajectory in group.trajectories)
    print(json.dumps({"tokens_per_s": tokens / seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()
