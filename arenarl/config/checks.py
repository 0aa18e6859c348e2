"""Which keys of a run contradict each other, in one line that says what to change, before any work starts.

`load.load_config` checks every config; what depends on the number of processes is `check_groups`, which train_rl.py
asks. What a key may hold by itself stands beside it in `schema`, and was refused before.
"""

import json
import re
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from urllib.parse import urlsplit

from arenarl.config.schema import (
    BY_ANSWER,
    OUTCOMES,
    WITH_FORMAT_REWARD,
    Config,
    EnvironmentConfig,
    GroupStageConfig,
    JudgeConfig,
    MCPServerConfig,
    ResearchDataConfig,
    RolloutConfig,
    TournamentConfig,
)
from arenarl.config.value_types import REWARDS
from arenarl.system.errors import UserError, shown
from arenarl.tournament.group_stage import GroupStage
from arenarl.tournament.schedules import parse_budget
from arenarl.tournament.topologies import TOPOLOGIES, parameters_of, rehearse, resolve_ranking

OFFLINE = {"dpo", "agentevol"}
SCORES = {"pointwise_answer", "pointwise_trajectory"}
# the rewards that play tournament.topology; the others bring their own matches, or none
PLAYS = {"tournament", "correctness_or_tournament"}
MEETS = PLAYS | {"win_rate", "elo", "brpo", "mixture"}  # those whose matches are calls of two trajectories
# keys of rl.method=online; rl.beta, which the offline methods do not read either, comes to them from their base
OF_ONLINE = (
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "updates_per_rollout", "advantage",
    "advantage_ddof", "advantage_epsilon",
)  # fmt: skip
READ_BY = {  # a key that only some runs read -> the key that decides it, and its values
    "reward.repeats": ("reward.name", SCORES),
    "reward.alpha": ("reward.name", {"mixture"}),
    "reward.mixture_pairs": ("reward.name", {"mixture"}),
    "reward.entity_recall": ("reward.name", BY_ANSWER),
    "reward.tournament_if_equal": ("reward.name", OUTCOMES),
    **{f"group_stage.{key.name}": ("reward.name", {"tournament_grpo"}) for key in fields(GroupStageConfig)},
    "rl.rounds": ("rl.method", OFFLINE),
    "rl.batch_size": ("rl.method", OFFLINE),
    "rl.dpo_beta": ("rl.method", {"dpo"}),
    "rl.keep_from": ("rl.method", {"agentevol"}),
    "rl.advantage_ddof": ("rl.advantage", {"group_std"}),
    "rl.advantage_epsilon": ("rl.advantage", {"group_std"}),
    "rl.discount": ("rl.advantage", {"gae"}),
    "rl.gae_lambda": ("rl.advantage", {"gae"}),
    "rl.critic_learning_rate": ("rl.advantage", {"gae"}),
    "rollout.vllm_sleep": ("rollout.backend", {"vllm"}),
    "rollout.vllm_tensor_parallel": ("rollout.backend", {"vllm"}),  # a server takes its own --tensor-parallel-size
    "rollout.server_sync": ("rollout.backend", {"vllm_server"}),
}

# beside policies
_OF_SUMMARY = {
    "run", "seed", "judge", "seconds", "peak_memory_gb", "checkpoints", "verifier", "reference", "watch", "provenance",
}  # fmt: skip


def check(config: Config) -> None:
    """Refuse what no run can work with. What depends on the number of processes is checked by `check_groups`."""
    try:
        GroupStage(**asdict(config.group_stage))
    except ValueError as error:
        raise UserError(f"group_stage.{error}") from error
    if config.reward.name == "tournament_grpo" and config.group_stage.final >= config.rollout.group_size:
        raise UserError(
            f"group_stage.final={config.group_stage.final}: must be below rollout.group_size, "
            "or nothing would be played"
        )
    _check_policies(config)
    _check_llms(config)
    _check_method(config)
    _check_address("rollout.server_url", config.rollout.server_url, "such as http://127.0.0.1:8000")
    _check_tournament(config)
    _check_training(config)
    if "research" in (config.environment.name, *(server.world for server in config.environment.mcp)):
        _check_search(config.environment)
    _check_address("environment.search.web.endpoint", config.environment.search.web.endpoint)
    _check_mcp(config.environment)
    _check_turns(config)
    _check_research(config.data.research)
    _check_unread(config)


def _check_address(key: str, url: str | None, hint: str = "a key belongs into the environment variable") -> None:
    """Refuse what is no web address, and one with a password or a query, which may hold a key: it is not repeated."""
    try:
        parts = urlsplit(url or "http://host")
        is_sound = (
            parts.scheme in ("http", "https")
            and re.fullmatch(r"[\w.-]+|[0-9a-f:.]+", parts.hostname or "")
            and parts.port != 0
        )
    except ValueError:  # of brackets and ports
        is_sound = False
    if not is_sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(f"{key} must be an http(s) address with a host and without a key in it; {hint}")


def _check_unread(config: Config) -> None:
    """Refuse a key that is set and that nothing reads: an ablation of it would compare a run with itself."""
    reward, defaults = config.reward, Config()
    rules = [(key, owner, values, attrgetter(owner)(config)) for key, (owner, values) in READ_BY.items()]
    rules += [(f"rl.{key}", "rl.method", {"online"}, config.rl.method) for key in OF_ONLINE]
    if not reward.tournament_if_equal:
        rules += [(f"tournament.{key}", "reward.name", PLAYS, reward.name) for key in ("topology", "ranking")]
        rules.append(("tournament.bidirectional", "reward.name", MEETS, reward.name))
    is_elo = reward.name == "elo" or (reward.name, reward.mixture_pairs) == ("mixture", "elo")
    played = (
        config.tournament.topology if reward.name in PLAYS or reward.tournament_if_equal else "elo" if is_elo else None
    )
    parameters = {name: parameters_of(name) for name in {*TOPOLOGIES, *([played] if played else [])}}
    for key in dict.fromkeys(key for name in TOPOLOGIES for key in parameters[name]):
        rules.append(
            (
                f"tournament.{key}",
                "tournament.topology",
                {name for name in parameters if key in parameters[name]},
                played or reward.name,
            )
        )
    for key, owner, values, chosen in rules:
        value, default = attrgetter(key)(config), attrgetter(key)(defaults)
        if value != default and chosen not in values:
            owners = " or ".join(sorted(values))
            raise UserError(
                f"{key}={_as_set(value)} is of {owner}={owners}, not of {chosen}; leave it out, "
                f"or set {key}={_as_set(default)}"
            )


def _as_set(value: object) -> str:
    """As --set takes it."""
    return shown(value if isinstance(value, str) else json.dumps(value))


def _check_tournament(config: Config) -> None:
    tournament = config.tournament
    try:
        resolve_ranking(tournament.topology, tournament.ranking)
        if ":" in tournament.topology:
            if unknown := set(parameters_of(tournament.topology)) - {key.name for key in fields(TournamentConfig)}:
                raise ValueError(
                    f"{tournament.topology} has parameters that are no keys of tournament: {', '.join(sorted(unknown))}"
                )
            rehearse(tournament.topology, config.rollout.group_size)
        for entrants in range(2, config.rollout.group_size + 1):  # like trajectories enter once
            if (granted := parse_budget(tournament.matches, entrants)) < entrants // 2:
                raise ValueError(
                    f"matches={tournament.matches}: {entrants} entrants would play {granted} matches, "
                    "too few for each to play one; write n-1 or 2n-2"
                )
        size, played = config.rollout.group_size, tournament.elo_matches
        if played is not None and 2 * played < size:
            raise ValueError(
                f"elo_matches={played}: too few for each of {size} entrants to play one; leave it out for ⌈N log₂ N⌉"
            )
    except ValueError as error:
        raise UserError(
            f"tournament.{error}" if str(error).startswith(("matches=", "elo_matches=")) else f"tournament: {error}"
        ) from error


def _check_training(config: Config) -> None:
    scratch, difficulty = config.policy.scratch, config.rl.difficulty
    if config.data.divide and not config.data.source:
        raise UserError(
            "data.divide=true: there is nothing to divide; name published data in data.source, or leave it out"
        )
    if scratch.num_heads % scratch.num_kv_heads:
        raise UserError(
            f"policy.scratch.num_heads={scratch.num_heads}: must be a multiple of "
            f"policy.scratch.num_kv_heads={scratch.num_kv_heads}"
        )
    if not config.data.source and round(config.sft.epochs * config.data.sft_size) < 1:
        raise UserError(
            f"sft.epochs={config.sft.epochs}: of data.sft_size={config.data.sft_size} "
            "trajectories that leaves none to train on"
        )
    if difficulty.low > difficulty.high:
        raise UserError(f"rl.difficulty.low={difficulty.low}: must not be above rl.difficulty.high={difficulty.high}")


def _check_research(research: ResearchDataConfig) -> None:
    weights = research.hop_weights
    if not sum(weights):
        raise UserError(f"data.research.hop_weights={weights}: name a weight for 1, 2, … entities, one of them above 0")
    nodes, level = 1, 1
    for children in research.branching:
        level *= children
        nodes += level
    if len(weights) > nodes:
        raise UserError(
            f"data.research.hop_weights={weights}: a tree by "
            f"data.research.branching={research.branching} has at most {nodes} entities"
        )


def _check_search(environment: EnvironmentConfig) -> None:
    search = environment.search
    if search.engine == "folder" and not (search.folder and Path(search.folder).is_dir()):
        raise UserError(f"environment.search.folder={search.folder}: name the folder of the documents")
    if search.engine == "web" and environment.results == "compact":
        raise UserError(
            "environment.results=compact names pages by their titles, which the web cannot find; "
            "set environment.results=full"
        )
    if search.engine == "web" and search.web.api == "searxng" and not search.web.endpoint:
        raise UserError(
            "environment.search.web.endpoint is missing: name the address of your SearXNG, "
            "such as http://127.0.0.1:8888/search"
        )


def _check_mcp(environment: EnvironmentConfig) -> None:
    if bool(environment.mcp) != (environment.name == "mcp"):
        how = (
            "name a server: {command: [...]} or {url: ...}"
            if not environment.mcp
            else f"its servers would be left aside by {environment.name}"
        )
        raise UserError(f"environment.mcp and environment.name=mcp go together; {how}")
    default = MCPServerConfig()
    for number, server in enumerate(environment.mcp):
        key = f"environment.mcp.{number}"
        kinds = [kind for kind in ("command", "url", "world") if getattr(server, kind)]
        if len(kinds) != 1:
            raise UserError(f"{key}: name one of command, url and world, not {' and '.join(kinds) or 'none'}")
        if "mcp" in (server.world, *(renamed.like for renamed in server.rename.values())):
            raise UserError(f"{key}: world and like name an environment of this project with tools of its own, not mcp")
        for name, of in {
            "env": "command",
            "variables": "command",
            "api_key_variable": "url",
            "api_key_parameter": "url",
        }.items():
            if kinds != [of] and getattr(server, name) != getattr(default, name):
                raise UserError(f"{key}.{name} is of {of}, not of {kinds[0]}; leave it out")
        _check_address(f"{key}.url", server.url)
        if server.api_key_parameter and not server.api_key_variable:
            raise UserError(f"{key}.api_key_parameter carries the key that {key}.api_key_variable names; name that too")
        for name, renamed in server.rename.items():
            if bool(renamed.tool) == bool(renamed.function):
                raise UserError(
                    f"{key}.rename.{name}: name either the server's tool, or a function that makes its calls"
                )


def _check_turns(config: Config) -> None:
    try:
        config.turns  # noqa: B018 - building it checks it
    except ValueError as error:
        raise UserError(f"rollout.{error}") from error
    turns = config.evaluate.max_turns
    if turns is not None and turns != sorted(set(turns or [0])):
        raise UserError(
            f"evaluate.max_turns={turns}: must name turns, each larger than the one before; "
            "null takes rollout.max_turns"
        )
    if turns and config.rollout.force_answer:
        raise UserError(
            "evaluate.max_turns cuts trajectories afterwards, where no answer could be forced; "
            "leave rollout.force_answer out"
        )
    if config.evaluate.samples > 1 and "sampled" not in config.evaluate.decodings:
        raise UserError(
            f"evaluate.samples={config.evaluate.samples}: only sampled trajectories differ; "
            "add sampled to evaluate.decodings"
        )


def _check_policies(config: Config) -> None:
    """What is behind an API can be evaluated, but there are no weights to train."""
    if (path := config.rollout.system_prompt_file) and not path.is_file():
        raise UserError(
            f"rollout.system_prompt={path}: there is no such file; name one, write the text itself, "
            "or none for no system prompt"
        )
    for key, path in {"policy.model": config.policy.model, "rl.init": config.rl.init}.items():
        if path and path.endswith((".yaml", ".yml")):
            raise UserError(
                f"{key}={path}: a model behind an API cannot be trained, its weights are not here; "
                "evaluate it with evaluate.api"
            )
    if taken := sorted(_OF_SUMMARY & {*config.evaluate.checkpoints, *config.evaluate.api}):
        raise UserError(
            f"evaluate: {taken[0]} is what summary.json calls something else; give what is evaluated another name"
        )
    for name, path in config.evaluate.checkpoints.items():
        if path.endswith((".yaml", ".yml")):
            raise UserError(
                f"evaluate.checkpoints.{name}={path}: name a model behind an API as "
                f"evaluate.api={{{name}: {{base: {path}}}}}"
            )
        if name in config.evaluate.api:
            raise UserError(f"evaluate.api.{name}: a checkpoint has this name already; choose another")


def _check_llms(config: Config) -> None:
    judges = {"judge.train": config.judge.train, "judge.watch": config.judge.watch}
    judges |= {f"judge.eval.{index}": judge for index, judge in enumerate(config.judge.eval)}
    if config.judge.watch != JudgeConfig() and not config.judge.watch_share:
        raise UserError(
            "judge.watch would watch nothing: set judge.watch_share, "
            "the share of the groups that it scores, such as 0.25"
        )
    for key, judge in judges.items():
        if judge.query_rubrics and (judge.name != "llm" or key not in ("judge.train", "judge.watch")):
            raise UserError(
                f"{key}.query_rubrics: only an LLM judge in training takes them; "
                "evaluation compares by the domain's dimensions"
            )
    if config.reward.repeats > 1 and config.judge.train.name == "llm" and config.judge.train.temperature == 0:
        raise UserError(
            f"reward.repeats={config.reward.repeats}: at judge.train.temperature=0 all replies to a prompt are alike, "
            "and each is paid for; set the temperature above 0, or reward.repeats=1"
        )
    if (
        config.reward.name == "rubric_checklist"
        and config.judge.train.name == "llm"
        and not config.judge.train.query_rubrics
    ):
        raise UserError(
            "reward.name=rubric_checklist needs items written for each query: set judge.train.query_rubrics, "
            "which python -m arenarl.judges.query_rubrics --checklist writes"
        )
    policies = {f"evaluate.api.{name}": llm for name, llm in config.evaluate.api.items()}
    others = {f"environment.{name}": llm for name, llm in config.environment.llms.items()}
    others |= {"judge.verifier": config.judge.verifier, "data.research.rephraser": config.data.research.rephraser}
    for key, llm in (judges | others | policies).items():
        _check_address(f"{key}.base_url", llm.base_url)
        if llm.name != "llm":
            if key in policies:
                raise UserError(
                    f"{key}: set its name to llm, and model and base_url to those of an API; "
                    "files of configs/policies do"
                )
            if llm.name == "embedded" and (
                ignored := next((name for name in ("model", "base_url") if getattr(llm, name)), None)
            ):
                raise UserError(
                    f"{key}.{ignored} would be ignored: {key}.name is embedded, which asks no model; set it to llm, "
                    f"or {key}.{ignored} to null"
                )
            continue
        if not llm.model:
            raise UserError(f"{key}.model is missing: name the model, or take a file of configs/judges as {key}.base")
        if config.judge.max_cost is not None and None in (llm.price_in, llm.price_out):
            raise UserError(f"judge.max_cost needs {key}.price_in and {key}.price_out")


def _check_method(config: Config) -> None:
    """Refuse keys of `rl` that contradict each other: a run would be half of one method and half of another."""
    rl = config.rl
    if rl.loss_type == "dr_grpo" and rl.advantage not in ("center", "leave_one_out", "none"):
        raise UserError(
            f"rl.loss_type=dr_grpo is for advantages without a standard deviation, not rl.advantage={rl.advantage}; "
            "set rl.advantage=center for Dr.GRPO, leave_one_out for RLOO"
        )
    if rl.advantage == "gae" and (rl.method != "online" or rl.deepspeed or rl.importance_sampling_level == "sequence"):
        raise UserError(
            "rl.advantage=gae (PPO) has an advantage for every token and a critic that each process holds whole: "
            "set rl.method=online, rl.deepspeed=null and rl.importance_sampling_level=token"
        )
    if rl.importance_sampling_level == "sequence" and rl.loss_type != "grpo":
        raise UserError(
            f"rl.loss_type={rl.loss_type} would weight a sequence's ratio by its length; set rl.loss_type=grpo for GSPO"
        )
    if rl.advantage == "decoupled" and config.reward.name in WITH_FORMAT_REWARD:
        raise UserError(
            f"rl.advantage=decoupled keeps validity apart, but reward.name={config.reward.name} has it in its sum "
            f"already; take one of {', '.join(sorted(set(REWARDS) - WITH_FORMAT_REWARD))}"
        )
    if rl.method == "dpo" and (
        config.reward.name != "tournament"
        and not config.reward.tournament_if_equal
        or not config.tournament.bidirectional
    ):
        raise UserError(
            "rl.method=dpo takes its pairs from matches in both orders: "
            "set reward.name=tournament and tournament.bidirectional=true"
        )
    if rl.method != "online" and config.rollout.backend != "transformers":
        raise UserError(
            f"rl.method={rl.method} rolls out with rollout.backend=transformers, not {config.rollout.backend}"
        )
    if rl.method != "online" and rl.deepspeed:
        raise UserError(f"rl.method={rl.method} trains without DeepSpeed; set rl.deepspeed=null")
    if rl.rounds > rl.rollouts:
        raise UserError(f"rl.rounds={rl.rounds} share {rl.rollouts} steps of rollouts; lower it, or raise rl.steps")
    for key in ("save_steps", "eval_steps"):
        if getattr(rl, key) % rl.updates_per_rollout:
            raise UserError(
                f"rl.{key}={getattr(rl, key)}: must be a multiple of rl.updates_per_rollout={rl.updates_per_rollout}"
            )


def check_tensor_parallel(rollout: RolloutConfig, processes: int) -> None:
    """Refuse engines of unequal size.

    Raises:
        UserError: names both numbers.
    """
    if processes % rollout.vllm_tensor_parallel:
        raise UserError(
            f"rollout.vllm_tensor_parallel={rollout.vllm_tensor_parallel} does not divide {processes} processes into "
            "engines of equal size; change one of them"
        )


def check_groups(config: Config, processes: int) -> None:
    """Refuse a layout that would split a rollout group over processes or steps: its ranks would be silently wrong. And
    one that leaves a process without a judge call.

    Raises:
        UserError: names the numbers to change.
    """
    n, k, micro = config.rollout.group_size, config.rl.groups, config.rl.micro_batch_size
    if processes < 1:
        raise UserError(f"{processes} processes cannot train; start at least one")
    if config.judge.concurrency < processes:
        raise UserError(
            f"judge.concurrency={config.judge.concurrency} cannot be shared by {processes} processes; "
            f"set it to {processes} or more, or start fewer processes"
        )
    if k % processes:
        raise UserError(
            f"rl.groups={k} cannot be shared by {processes} processes without splitting a group; "
            f"set rl.groups to a multiple of {processes}, or start a number of processes that divides {k}"
        )
    if config.rl.method != "online" and (batch := config.rl.batch_size) % processes:
        raise UserError(
            f"rl.batch_size={batch} cannot be shared by {processes} processes; "
            f"set rl.batch_size to a multiple of {processes}, or start a number of processes that divides {batch}"
        )
    per_process, updates = k // processes * n, config.rl.updates_per_rollout
    if per_process % updates:
        raise UserError(
            f"rl.updates_per_rollout={updates} does not divide the {per_process} trajectories of a process "
            f"(rl.groups={k} / {processes} processes x rollout.group_size={n}); change one of them"
        )
    per_update = per_process // updates
    if per_update % micro:
        raise UserError(
            f"rl.micro_batch_size={micro} does not divide the {per_update} trajectories of a process and update "
            f"(rl.groups={k} / {processes} processes x rollout.group_size={n} / rl.updates_per_rollout={updates}); "
            f"set rl.micro_batch_size to one of {[d for d in range(1, per_update + 1) if per_update % d == 0]}"
        )
