"""ArenaRL on one page: the whole method in plain torch, without this repository's engine, tournament or trainer.

    ./reproduce.sh data && ./reproduce.sh sft    # once: the SFT policy of configs/quickstart.yaml, minutes on two cores
    python examples/one_page.py

The steps of the paper (arXiv 2601.06487) come in order: roll out a group (Section 4.2), play its tournament
(4.3, Algorithm 1), turn ranks into advantages (Eqs. 6 and 7), minimise the clipped loss with its KL term (Eq. 8). Only
the travel world, its simulated judge and the text form of a turn are imported. tests/test_one_page.py checks that
rewards, advantages and loss equal train_rl.py's for the same trajectories. train_rl.py adds what long runs need: tools
and judges that fail, generation and judging side by side, checkpoints, vLLM, several GPUs.

Suffixes name dimensions: G the N trajectories of a group, B the trajectories of a batch, T tokens.
"""

import argparse
import asyncio
import copy
import random
from pathlib import Path
from statistics import fmean

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from arenarl.config.load import configure
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import make_examiner, true_quality
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import run_cli
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Trajectory, assistant_message, parse_turn, prompt_messages, tool_message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/quickstart.yaml", help="a run in the embedded travel world")
    parser.add_argument("--policy", help="folder of the SFT policy (default: the config's)")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: the config's)")
    arguments = parser.parse_args()
    config = configure(arguments.config)
    path, steps = arguments.policy or config.sft_policy, arguments.steps or config.rl.steps
    if not Path(path).is_dir():
        parser.error(f"the folder {path} does not exist; first run: ./reproduce.sh data && ./reproduce.sh sft")

    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    domain = make_domain(config.environment, config.data)
    world = make_environment(config.environment, config.data.language)
    examine = make_examiner(domain)
    judge = make_judge(config.judge.train, domain, examine, seed=config.seed)
    queries = [query for query in domain.read_split("rl") if query.subtask not in domain.held_out]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.rl.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    for step in range(steps):
        chosen = random.Random(stable_seed(config.seed, step)).sample(queries, config.rl.groups)
        groups = roll_out(policy, tokenizer, world, chosen, config.rollout)
        ranks = asyncio.run(rank_groups(chosen, groups, judge, config.seed))
        advantages_B = torch.cat([standardize(rank_to_reward(ranks_G)) for ranks_G in ranks])
        batch = [trajectory for group in groups for trajectory in group]
        for rows in torch.arange(len(batch)).split(config.rl.micro_batch_size):
            part = [batch[row] for row in rows]
            with torch.no_grad():
                reference_BT, _ = log_probabilities(reference, part, config.rollout.temperature)
            policy_BT, own_BT = log_probabilities(policy, part, config.rollout.temperature)
            old_BT = policy_BT.detach()  # one update per rollout: the policy that generated is the one that learns
            loss = clipped_loss(policy_BT, old_BT, reference_BT, own_BT, advantages_B[rows], config.rl)
            (loss * len(rows) / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.rl.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

        qualities = [true_quality(examine, q, t) for q, group in zip(chosen, groups, strict=True) for t in group]
        valid = fmean(trajectory.valid for trajectory in batch)
        print(f"step {step + 1}: {valid:.0%} valid, noise-free quality {fmean(qualities):.2f} of 10", flush=True)


def roll_out(policy, tokenizer, world, queries, settings) -> list[list[Trajectory]]:
    """Generate `group_size` trajectories for each query: thought and tool calls, observations, …, answer (Eq. 1)."""
    policy.eval()
    groups = [[begin(tokenizer, query) for _ in range(settings.group_size)] for query in queries]
    for group in groups:
        group[0].is_anchor = True
    running = [trajectory for group in groups for trajectory in group]
    for _ in range(settings.max_turns):
        for greedy in (True, False):
            rows = [trajectory for trajectory in running if trajectory.is_anchor == greedy]
            for start in range(0, len(rows), settings.batch_size):
                part = rows[start : start + settings.batch_size]
                turns = generate_turns(policy, tokenizer, part, settings, greedy)
                for trajectory, turn_ids in zip(part, turns, strict=True):
                    take_turn(tokenizer, world, trajectory, turn_ids, settings)
        running = [trajectory for trajectory in running if trajectory.stop_reason == "max_turns"]
    policy.train()
    return groups


def begin(tokenizer, query) -> Trajectory:
    """Return a trajectory before its first turn; its stop reason stays `max_turns` until a turn ends it."""
    messages = prompt_messages(query)
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return Trajectory(query.query_id, messages, "max_turns", prompt_ids=list(prompt_ids))


@torch.no_grad()
def generate_turns(policy, tokenizer, trajectories, settings, greedy) -> list[list[int]]:
    """Generate the next turn of each trajectory: token ids up to the end of the turn, or to the budget."""
    texts = [trajectory.prompt_ids + trajectory.completion_ids for trajectory in trajectories]
    inputs = tokenizer.pad({"input_ids": texts}, return_tensors="pt")
    sampling = {} if greedy else {"temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
    output = policy.generate(
        **inputs,
        **sampling,
        do_sample=not greedy,
        max_new_tokens=settings.max_turn_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    turns = []
    for trajectory, row in zip(trajectories, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        turns.append(row[: min(end, settings.max_tokens - len(trajectory.completion_ids))])
    return turns


def take_turn(tokenizer, world, trajectory, turn_ids, settings) -> None:
    """Append a generated turn and the results of its tool calls; set `stop_reason` if it ends the trajectory."""
    extend(trajectory, turn_ids, is_own=True)
    is_whole = turn_ids[-1] == tokenizer.eos_token_id
    message = assistant_message(tokenizer.decode(turn_ids[:-1] if is_whole else turn_ids))
    trajectory.messages.append(message)
    turn = parse_turn(message)
    if not is_whole:
        trajectory.stop_reason = "max_tokens"
    elif not turn.tool_calls:
        trajectory.stop_reason = "answer" if turn.answer else "no_answer"
    else:
        observations = [tool_message(call_tool(world, call)) for call in turn.tool_calls]
        trajectory.messages += observations
        extend(trajectory, observation_ids(tokenizer, observations), is_own=False)
        if len(trajectory.completion_ids) >= settings.max_tokens:
            trajectory.stop_reason = "max_tokens"


def extend(trajectory, token_ids, is_own) -> None:
    """Append tokens. Only the policy's own tokens are trained on, not the observations between them."""
    trajectory.completion_ids += token_ids
    trajectory.policy_mask_T += [int(is_own)] * len(token_ids)


def call_tool(world, call) -> str:
    """Return the observation. A wrong call is an observation too, so that the policy can correct it."""
    try:
        return world.call(call.name, call.arguments)
    except ToolError as error:
        return f"Error: {error}"


def observation_ids(tokenizer, observations) -> list[int]:
    """Return the tokens between the end of one assistant turn and the start of the next."""
    before = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    end = tokenizer.apply_chat_template(before, tokenize=False).rindex(tokenizer.eos_token) + len(tokenizer.eos_token)
    text = tokenizer.apply_chat_template([*before, *observations], tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text[end:], add_special_tokens=False)


async def rank_groups(queries, groups, judge, seed) -> list[list[float]]:
    """Return the ranks (G,) of each group; all groups are judged at once."""
    pairs = zip(queries, groups, strict=True)
    return await asyncio.gather(*(rank(query, group, judge, seed) for query, group in pairs))


async def rank(query, group, judge, seed) -> list[float]:
    """Rank a group (G,): 0 is best, equal trajectories share their mean rank, invalid trajectories share the last
    ranks.

    Identical trajectories enter once. Trajectory 0 is the anchor; if it is invalid, the first valid trajectory replaces
    it.
    """
    members: dict[str, list[int]] = {}
    for row, trajectory in enumerate(group):
        if trajectory.valid:
            members.setdefault(repr(trajectory.messages), []).append(row)
    entrants = [group[rows[0]] for rows in members.values()]
    standings = await play(query, entrants, judge, stable_seed(seed, query.query_id)) if entrants else []
    keys_G = [(-1.0, 0.0)] * len(group)
    for rows, standing in zip(members.values(), standings, strict=True):
        for row in rows:
            keys_G[row] = standing
    return [sum(other > key for other in keys_G) + (keys_G.count(key) - 1) / 2 for key in keys_G]


async def play(query, entrants, judge, seed) -> list[tuple[float, float]]:
    """Return each entrant's (tier, mean score), higher is better: first the seeding, then the bracket."""
    n, scores = len(entrants), {}  # scores[i, j]: what i scored against j
    anchor, others = 0, range(1, n)

    async def match(i, j) -> None:
        """Judge a pair in both orders and sum the scores, so that position bias cancels (Eq. 3). Never judge twice."""
        if (i, j) not in scores:
            forward, backward = await asyncio.gather(
                judge.compare(query, entrants[i], entrants[j]), judge.compare(query, entrants[j], entrants[i])
            )
            (a, b), (d, c) = forward.totals, backward.totals
            scores[i, j], scores[j, i] = round(a + c, 9), round(b + d, 9)

    def mean_score(i, opponents) -> float:
        return round(fmean(scores[i, j] for j in opponents), 9) if opponents else 0.0

    # Seeding: every trajectory meets the anchor, and its score is its seed (Eq. 4); the anchor has its mean score.
    await asyncio.gather(*(match(anchor, i) for i in others))
    met = {i: {anchor} for i in others} | {anchor: set(others)}
    lots = random.Random(seed).sample(range(n), n)
    seeds = sorted(lots, key=lambda i: -mean_score(i, met[i]))

    # Bracket: the loser of a match is out; deeper is better (Eq. 5). None is a bye, beaten without a match.
    places = [seeds[k] if k < n else None for k in bracket_order(n)]
    tiers, by_lot, depth = dict.fromkeys(range(n), 0.0), [], 1
    while len(places) > 1:
        pairs = list(zip(places[::2], places[1::2], strict=True))
        await asyncio.gather(*(match(i, j) for i, j in pairs if None not in (i, j)))
        places = []
        for i, j in pairs:
            if None in (i, j):
                places.append(j if i is None else i)
                continue
            means = {k: mean_score(k, met[k]) for k in (i, j)}  # decide a draw; then the seeding order
            winner, loser = sorted((i, j), key=lambda k: (-scores[k, i + j - k], -means[k], seeds.index(k)))
            if scores[i, j] == scores[j, i] and means[i] == means[j]:
                by_lot.append((loser, winner))
            tiers[loser] = depth
            met[i].add(j), met[j].add(i)
            places.append(winner)
        depth += 1
    tiers[places[0]] = depth
    for loser, winner in reversed(by_lot):  # the random order is not evidence: the loser shares the winner's tier
        tiers[loser] = tiers[winner]
    if all(scores[i, j] == scores[j, i] for i, j in scores):
        return [(0.0, 0.0)] * n
    return [(tiers[i], mean_score(i, met[i])) for i in range(n)]


def bracket_order(size) -> list[int]:
    """Seeds (0 is best) in bracket order, where the best two can meet only in the final; seeds >= `size` are byes.

    >>> bracket_order(6)
    [0, 7, 3, 4, 1, 6, 2, 5]
    """
    order = [0]
    while len(order) < size:
        order = [seed for k in order for seed in (k, 2 * len(order) - 1 - k)]
    return order


def rank_to_reward(ranks_G) -> torch.Tensor:
    """Reward (G,) in [0, 1] by quantile: 1 for rank 0, 0 for the last. Eq. 6.

    >>> rank_to_reward([0, 2, 1])
    tensor([1.0000, 0.0000, 0.5000])
    """
    return 1 - torch.tensor(ranks_G, dtype=torch.float32) / (len(ranks_G) - 1)


def standardize(rewards_G) -> torch.Tensor:
    """Advantage (G,): rewards minus their mean, divided by their standard deviation; 0 where all are equal. Eq. 7."""
    return (rewards_G - rewards_G.mean()) / (rewards_G.std() + 1e-4)


def log_probabilities(model, trajectories, temperature) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities of all tokens but the first (B, T), and 1 where the token is the policy's own (B, T)."""
    texts = [torch.tensor(trajectory.prompt_ids + trajectory.completion_ids) for trajectory in trajectories]
    masks = [torch.tensor([0] * len(t.prompt_ids) + t.policy_mask_T) for t in trajectories]
    tokens_BT = pad_sequence(texts, batch_first=True)  # on the right, where causal attention does not see it
    own_BT = pad_sequence(masks, batch_first=True)
    logits_BTV = model(input_ids=tokens_BT).logits[:, :-1] / temperature
    return logits_BTV.log_softmax(-1).gather(-1, tokens_BT[:, 1:, None]).squeeze(-1), own_BT[:, 1:]


def clipped_loss(policy_BT, old_BT, reference_BT, own_BT, advantages_B, settings) -> torch.Tensor:
    """Average over the policy's own tokens of each trajectory, then over trajectories (Eq. 8); the KL term is k3."""
    ratio_BT = torch.exp(policy_BT - old_BT)
    clipped_BT = ratio_BT.clamp(1 - settings.epsilon, 1 + (settings.epsilon_high or settings.epsilon))
    gain_BT = torch.min(ratio_BT * advantages_B[:, None], clipped_BT * advantages_B[:, None])
    distance_BT = reference_BT - policy_BT
    kl_BT = torch.exp(distance_BT) - distance_BT - 1
    loss_BT = (settings.beta * kl_BT - gain_BT) * own_BT
    return (loss_BT.sum(1) / own_BT.sum(1).clamp(min=1)).mean()


if __name__ == "__main__":
    run_cli(main, goes_on=False)
