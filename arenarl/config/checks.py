"""Refuse keys that contradict each other, before any work starts. Each error is one line that says what to change.

`load.load_config` checks every config. The range of a single key is in `schema`, and the requirements of methods and
rewards are in `arenarl/training`. `check_groups` checks the number of processes.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

from arenarl.config.schema import (
    LORA_RANKS,
    Config,
    EnvironmentConfig,
    JudgeConfig,
    LLMConfig,
    MCPServerConfig,
    NoiseConfig,
    ResearchDataConfig,
    RLConfig,
    RolloutConfig,
    TournamentConfig,
)
from arenarl.config.value_types import SERVERS, SchedulerName
from arenarl.system.database import is_url
from arenarl.system.errors import UserError, current_folder, missing, one_line
from arenarl.system.masking import has_form_of_secret, is_secret_command, secret_in
from arenarl.tournament.group_stage import GroupStage
from arenarl.tournament.schedules import parse_budget
from arenarl.tournament.topologies import parameters_of, rehearse, resolve_ranking

_ITEM_WORLDS = ("textcraft", "babyai", "sciworld", "searchqa", "agentgym")  # AgentGym-RL's domains
# key or section -> keys that decide whether it is read, each with the values with which it is. A vLLM server has its
# own --tensor-parallel-size
_READ_WITH = {
    "rollout.vllm_tensor_parallel": {"rollout.backend": ("vllm",)},
    "rollout.server_sync": {"rollout.backend": ("vllm_server",)},
    "rollout.server_weights": {"rollout.backend": ("vllm_server",)},
    "environment.server": {"environment.name": SERVERS},
    "environment.tickets": {"environment.name": ("travel", "mcp")},
    "data.subtasks": {"environment.domain": _ITEM_WORLDS},
    "data.items": {"environment.domain": _ITEM_WORLDS},
    "rl.difficulty.low": {"rl.difficulty.filter": (True,)},
    "rl.difficulty.high": {"rl.difficulty.filter": (True,)},
    "sft.warmup_ratio": {"sft.lr_scheduler": tuple(name for name in get_args(SchedulerName) if name != "constant")},
}
# key of an MCP server -> the only kind of server that reads it
_KINDS = {"env": "command", "variables": "command", "api_key_variable": "url", "api_key_parameter": "url"}
_SUMMARY_FIELDS = {  # fields of summary.json beside the policies' names
    "run", "seed", "judge", "seconds", "peak_memory_gb", "checkpoints", "verifier", "reference", "watch", "provenance",
}  # fmt: skip
_YAML = (".yaml", ".yml")
_LLM_KEYS = {"model", "base_url", "explain", "max_result_chars", "max_text_chars"}  # a simulated judge reads none
_NOISE_KEYS = {key.name for key in fields(NoiseConfig)}
_KEY_ADVICE = {  # key with free content -> where a secret in it belongs
    "env": "name its variable in `variables` instead",
    "command": "name its variable in `variables`, which the server inherits; in [sh, -c, '…'] it is \"$NAME\"",
    "parameters": "the search API gets the key in the variable that api_key_variable names",
    "extra_body": "the API gets the key in the variable that api_key_variable names",
}


def check(config: Config) -> None:
    """Raise UserError if two keys contradict each other."""
    _check_policies(config)
    _check_llms(config)
    _check_database("judge.store", config.judge.store)
    _check_database("environment.search.cache", config.environment.search.cache)
    _check_address("rollout.server_url", config.rollout.server_url, "such as http://127.0.0.1:8000")
    _check_tournament(config)
    _check_numbers(config)
    if "research" in (config.environment.name, *(server.world for server in config.environment.mcp)):
        _check_search(config.environment)
    _check_address("environment.search.web.endpoint", config.environment.search.web.endpoint)
    if config.environment.name in SERVERS:  # clients of OpenEnv take other schemes too
        _check_address("environment.server", config.environment.server, "such as http://127.0.0.1:36005")
    _check_mcp(config.environment)
    _check_turns(config)
    _check_research(config.data.research)
    _check_readers(config)
    _check_adapter(config.rollout, config.policy.lora_rank)
    _check_steps_ahead(config.rollout, config.rl)


def _check_readers(config: Config) -> None:
    """Refuse a key or section that is set, but not read with the other settings. A user's own class may read it."""
    for key, owners in _READ_WITH.items():
        current = {owner: attrgetter(owner)(config) for owner in owners}
        if not any(value in owners[owner] or ":" in str(value) for owner, value in current.items()):
            needed = ", or ".join(f"{owner}={' or '.join(map(as_word, values))}" for owner, values in owners.items())
            refuse_unread(config, key, needed, " and ".join(map(as_word, current.values())))


def refuse_unread(config: Config, key: str, needed: str, current: str) -> None:
    """Raise UserError if the key or section is set, because nothing reads it. `needed` is the setting with which it is
    read, such as `rl.method=online`, and `current` the present value of that setting."""
    value, default = (attrgetter(key)(settings) for settings in (config, Config()))
    if value == default:
        return
    what, how = (key, "") if is_dataclass(value) else (setting(key, value), f", or set {setting(key, default)}")
    raise UserError(f"{what} needs {needed}, not {current}; leave it out{how}")


def setting(key: str, value: Any) -> str:
    """Format a key and its value for the command line, as after --set."""
    return f"{key}={as_word(value)}"


def as_word(value: Any) -> str:
    """Format a value for the command line, as after --set."""
    return one_line(value if isinstance(value, str) else json.dumps(value))


def _check_adapter(rollout: RolloutConfig, lora_rank: int) -> None:
    """Refuse `rollout.send_adapter` where vLLM cannot receive an adapter."""
    if not rollout.send_adapter:
        return
    needs = {
        "rollout.backend=vllm or vllm_server": rollout.backend != "transformers",
        "rollout.server_sync=disk": rollout.server_sync == "disk",
        f"policy.lora_rank from 1 to {LORA_RANKS[-1]}": 0 < lora_rank <= LORA_RANKS[-1],
    }
    if missing_need := next((need for need, is_met in needs.items() if not is_met), None):
        raise UserError(
            f"rollout.send_adapter=true needs {missing_need}; leave it out, or set rollout.send_adapter=false"
        )


def shared_gpu_problem(rollout: RolloutConfig, steps_ahead: int) -> str:
    """Return why RL with `rl.steps_ahead` does not start on GPUs, or "". Without a GPU it starts."""
    if not steps_ahead or rollout.backend != "transformers":
        return ""
    how = "set rollout.backend=vllm_server with a server on other GPUs, or rl.steps_ahead=0"
    return f"rl.steps_ahead=1: rollout.backend=transformers would generate on the trainer's GPU; {how}"


def _check_steps_ahead(rollout: RolloutConfig, rl: RLConfig) -> None:
    """Refuse `rl.steps_ahead` where generation shares the trainer's GPU or waits for rewards, and
    `rollout.continuous_batching` where nothing reads it."""
    if rl.steps_ahead and rollout.backend == "vllm":
        how = "set rollout.backend=vllm_server, or rl.steps_ahead=0"
        raise UserError(f"rl.steps_ahead=1: rollout.backend=vllm generates on the trainer's own GPUs; {how}")
    if rollout.continuous_batching and (rollout.backend != "transformers" or rl.steps_ahead):
        needs = "needs rollout.backend=transformers and rl.steps_ahead=0; leave it out"
        raise UserError(f"rollout.continuous_batching=true {needs}")
    if rl.steps_ahead and rl.resample_equal > 1:
        raise UserError("rl.steps_ahead=1 draws no further queries; set rl.resample_equal=1, or rl.steps_ahead=0")


def check_secrets(values: Any, key: str = "") -> None:
    """Refuse API keys and passwords in a config's plain values: they are written to the run folder and to W&B.
    Raises UserError with the key that holds one."""
    name, place = key.rpartition(".")[2], None
    if name == "command":
        place = key if is_secret_command(values or ()) else None
    elif name in _KEY_ADVICE:
        place = secret_in(key, values)
    elif isinstance(values, str):
        place = key if has_form_of_secret(values) else None
    if place:
        how = _KEY_ADVICE.get(name, "keep it in an environment variable")
        raise UserError(f"{place} holds a key or a password, and a run stores its config; {how}")
    if name not in _KEY_ADVICE:
        for inner, value in _items(values):
            check_secrets(value, f"{key}.{inner}" if key else inner)


def variables_of(values: Any) -> Iterator[str]:
    """Yield the environment variables that a config's plain values name, for keys and for MCP servers."""
    for name, value in _items(values):
        if name in ("api_key_variable", "variables"):
            yield from [value] if isinstance(value, str) else value or ()
        elif name not in _KEY_ADVICE:
            yield from variables_of(value)


def _items(values: Any) -> list[tuple[str, Any]]:
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [(str(name), value) for name, value in pairs]


def _check_address(key: str, url: str | None, hint: str = "put the key into an environment variable") -> None:
    """Refuse an invalid web address, or one with a password or a query. The error hides it: it may contain a key."""
    try:
        parts = urlsplit(url or "http://host")
        is_host = re.fullmatch(r"[\w.-]+|[0-9a-f:.]+", parts.hostname or "")
        is_sound = parts.scheme in ("http", "https") and is_host and parts.port != 0
    except ValueError:  # invalid brackets or port
        is_sound = False
    if not is_sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(f"{key} must be an http(s) address with a host and without a key in it; {hint}")


def _check_database(key: str, place: str | None) -> None:
    """Refuse a database URL that is not PostgreSQL's or has a password; the error hides the password."""
    if "://" not in (place or ""):
        return
    try:
        parts = urlsplit(place)
        has_password = parts.password is not None or "password" in unquote(parts.query)
    except ValueError:  # invalid brackets
        raise UserError(f"{key} must be a file, or a URL such as postgresql://user@host/database") from None
    if has_password:
        raise UserError(f"{key} holds a password, and a run stores its config; set PGPASSWORD, or use ~/.pgpass")
    if not is_url(place):
        raise UserError(f"{key}={place}: must be a file, or a URL such as postgresql://user@host/database")


def _check_tournament(config: Config) -> None:
    tournament, size = config.tournament, config.rollout.group_size
    try:
        GroupStage(**asdict(config.group_stage))
    except ValueError as error:
        raise UserError(f"group_stage.{error}") from error
    try:
        resolve_ranking(tournament.topology, tournament.ranking)
        if ":" in tournament.topology:
            own = parameters_of(tournament.topology)
            if unknown := set(own) - {key.name for key in fields(TournamentConfig)}:
                names = ", ".join(sorted(unknown))
                raise ValueError(f"{tournament.topology} has parameters that tournament lacks: {names}; rename them")
            rehearse(tournament.topology, size, **{name: getattr(tournament, name) for name in own})
        for entrants in range(2, size + 1):  # identical trajectories enter once
            if (count := parse_budget(tournament.matches, entrants)) < entrants // 2:
                matches = f"matches={tournament.matches}: {entrants} entrants would play {count} matches"
                raise ValueError(f"{matches}, too few to give each a match; write n-1 or 2n-2")
        if (count := tournament.elo_matches) is not None and 2 * count < size:
            raise ValueError(f"elo_matches={count}: too few to give each of {size} entrants a match; leave it out")
    except ValueError as error:
        separator = "." if str(error).startswith(("matches=", "elo_matches=")) else ": "
        raise UserError(f"tournament{separator}{error}") from error


def _check_numbers(config: Config) -> None:
    scratch, difficulty, data, sft, rl = config.policy.scratch, config.rl.difficulty, config.data, config.sft, config.rl
    if data.divide and not data.source:
        raise UserError("data.divide=true: nothing to divide; name published data in data.source, or leave it out")
    if scratch.num_heads % (kv_heads := scratch.num_kv_heads):
        multiple = f"must be a multiple of policy.scratch.num_kv_heads={kv_heads}"
        raise UserError(f"policy.scratch.num_heads={scratch.num_heads}: {multiple}")
    if not data.source and round(sft.epochs * data.sft_size) < 1:
        few = f"times data.sft_size={data.sft_size} is less than one trajectory"
        raise UserError(f"sft.epochs={sft.epochs} {few}; raise one of them")
    if difficulty.low > difficulty.high:
        raise UserError(f"rl.difficulty.low={difficulty.low}: must not be above rl.difficulty.high={difficulty.high}")
    if rl.rounds > rl.rollouts:
        raise UserError(f"rl.rounds={rl.rounds} is more than the {rl.rollouts} rollouts; lower it, or raise rl.steps")
    if rl.warmup_steps and rl.lr_scheduler == "constant":
        raise UserError(f"rl.warmup_steps={rl.warmup_steps}: needs rl.lr_scheduler=constant_with_warmup, not constant")
    if rl.warmup_steps >= rl.steps:
        raise UserError(f"rl.warmup_steps={rl.warmup_steps}: must be below rl.steps={rl.steps}")
    for key in ("save_steps", "eval_steps"):
        if (value := getattr(rl, key)) % rl.updates_per_rollout:
            raise UserError(f"rl.{key}={value}: must be a multiple of rl.updates_per_rollout={rl.updates_per_rollout}")


def _check_research(research: ResearchDataConfig) -> None:
    key, weights = f"data.research.hop_weights={research.hop_weights}", research.hop_weights
    if not sum(weights):
        raise UserError(f"{key}: name a weight for 1, 2, … entities, at least one of them above 0")
    nodes, level = 1, 1
    for children in research.branching:
        level *= children
        nodes += level
    if len(weights) > nodes:
        raise UserError(f"{key}: a tree by data.research.branching={research.branching} has at most {nodes} entities")


def _check_search(environment: EnvironmentConfig) -> None:
    search = environment.search
    if search.engine == "folder" and not (search.folder and Path(search.folder).is_dir()):
        where = current_folder(search.folder) if search.folder else ""
        raise UserError(f"environment.search.folder={search.folder}: name the folder of the documents{where}")
    if search.dense and (search.engine == "web" or not search.embedder):
        where = "a local engine" if search.engine == "web" else "environment.search.embedder, such as all-minilm-l6-v2"
        raise UserError(f"environment.search.dense=true needs {where}")
    if search.engine == "web" and environment.results == "compact":
        raise UserError("environment.results=compact names pages by title, which the web cannot open; set it to full")
    if search.engine == "web" and search.web.api == "searxng" and not search.web.endpoint:
        example = "such as http://127.0.0.1:8888/search"
        raise UserError(f"environment.search.web.endpoint is missing: name the address of your SearXNG, {example}")


def _check_mcp(environment: EnvironmentConfig) -> None:
    if bool(environment.mcp) != (environment.name == "mcp"):
        how = "leave environment.mcp out" if environment.mcp else "name a server: {command: [...]} or {url: ...}"
        raise UserError(f"environment.mcp and environment.name=mcp go together; {how}")
    for number, server in enumerate(environment.mcp):
        key = f"environment.mcp.{number}"
        kinds = [kind for kind in ("command", "url", "world") if getattr(server, kind)]
        if len(kinds) != 1:
            raise UserError(f"{key}: name one of command, url and world, not {' and '.join(kinds) or 'none'}")
        if "mcp" in (server.world, *(renamed.like for renamed in server.rename.values())):
            raise UserError(f"{key}: world and like name an environment of this project with its own tools, not mcp")
        for name, kind in _KINDS.items():
            if kinds != [kind] and getattr(server, name) != getattr(MCPServerConfig(), name):
                raise UserError(f"{key}.{name} needs {kind}, but this server has {kinds[0]}; leave it out")
        _check_address(f"{key}.url", server.url)
        if server.api_key_parameter and not server.api_key_variable:
            raise UserError(f"{key}.api_key_parameter carries the key of {key}.api_key_variable; set that too")
        for name, renamed in server.rename.items():
            if bool(renamed.tool) == bool(renamed.function):
                raise UserError(f"{key}.rename.{name}: name the server's tool, or a function that makes its calls")


def _check_turns(config: Config) -> None:
    try:
        config.turns  # noqa: B018 - the property checks the schedule
    except ValueError as error:
        raise UserError(f"rollout.{error}") from error
    turns, samples, decodings = config.evaluate.max_turns, config.evaluate.samples, config.evaluate.decodings
    if len(set(decodings)) < len(decodings):
        raise UserError(
            f"evaluate.decodings={decodings}: names a decoding twice, so its figures would count twice; leave one out"
        )
    if turns is not None and turns != sorted(set(turns or [0])):
        raise UserError(f"evaluate.max_turns={turns}: must name turns, each larger than the one before, or be null")
    if turns and config.rollout.force_answer:
        raise UserError(
            "evaluate.max_turns cuts finished trajectories, so no answer can be forced; drop rollout.force_answer"
        )
    if samples > 1 and "sampled" not in decodings:
        raise UserError(f"evaluate.samples={samples}: greedy samples do not differ; add sampled to evaluate.decodings")


def _check_policies(config: Config) -> None:
    """Refuse a missing prompt file, training of a model behind an API, and policy names that clash."""
    evaluate = config.evaluate
    if (path := config.rollout.system_prompt_file) and not path.is_file():
        how = "; name a file, write the text itself, or none"
        raise UserError(f"rollout.system_prompt={missing(path, how)}")
    for key, path in {"policy.model": config.policy.model, "rl.init": config.rl.init}.items():
        if path and path.endswith(_YAML):
            raise UserError(f"{key}={path}: a model behind an API cannot be trained; evaluate it with evaluate.api")
    if taken := sorted(_SUMMARY_FIELDS & {*evaluate.checkpoints, *evaluate.api}):
        raise UserError(f"evaluate: the name {taken[0]} is a field of summary.json; choose another name")
    for name, path in evaluate.checkpoints.items():
        if path.endswith(_YAML):
            how = f"name a model behind an API as evaluate.api={{{name}: {{base: {path}}}}}"
            raise UserError(f"evaluate.checkpoints.{name}={path}: {how}")
        if name in evaluate.api:
            raise UserError(f"evaluate.api.{name}: a checkpoint has this name already; choose another")


def _check_llms(config: Config) -> None:
    judge = config.judge
    judges = judge.training | {"judge.watch": judge.watch} | judge.evaluating
    if judge.watch != JudgeConfig() and not judge.watch_share:
        raise UserError("judge.watch would score no groups; set judge.watch_share, the share of groups that it scores")
    for key, judge_config in judges.items():
        if judge_config.query_rubrics and (judge_config.name != "llm" or key in judge.evaluating):
            raise UserError(f"{key}.query_rubrics: only an LLM judge in training reads it; leave it out")
        if judge_config.name_turns and key not in judge.training:
            raise UserError(f"{key}.name_turns: only a judge in training names turns; leave it out")
        if judge_config.name_turns and not judge_config.process_aware:
            needed = "so that the judge sees the turns that it names"
            raise UserError(f"{key}.name_turns=true needs {key}.process_aware=true, {needed}")
    for key, judge_config in judge.training.items():
        if judge_config.name_turns != judge.train.name_turns:
            needed = str(judge.train.name_turns).lower()
            raise UserError(f"{key}.name_turns must be {needed}, as in judge.train: set it to {needed}")
    for key, llm in _llm_sections(config):
        _check_address(f"{key}.base_url", llm.base_url)
        if (llm.base_url or "").rstrip("/").endswith("/chat/completions"):
            raise UserError(f"{key}.base_url: leave /chat/completions out; each call adds it to the API's address")
        if llm.name != "llm" and key.startswith("evaluate.api."):
            raise UserError(f"{key} is not an LLM; set its name to llm, and model and base_url as in configs/policies")
        _check_kind(key, llm)
        if llm.name == "llm" and not llm.model:
            raise UserError(f"{key}.model is missing; name the model, or set {key}.base to a file of configs/judges")
        if llm.extra_body.get("stream"):
            raise UserError(f"{key}.extra_body.stream: replies are read whole, not as a stream; leave it out")
        if llm.name == "llm" and judge.max_cost is not None and None in (llm.price_in, llm.price_out):
            raise UserError(f"judge.max_cost needs {key}.price_in and {key}.price_out; set both beside its model")


def _check_kind(key: str, llm: LLMConfig) -> None:
    """Refuse a key of a model where none is called, and a key of the simulated judge where a model judges."""
    kinds = {"embedded": (_LLM_KEYS, "llm", "which calls no model"), "llm": (_NOISE_KEYS, "embedded", "not simulated")}
    unread, other, reason = kinds.get(llm.name, ((), "", ""))  # a user's own judge may read all keys
    for field in fields(llm):
        unset = getattr(type(llm)(), field.name)
        if field.name in unread and getattr(llm, field.name) != unset:
            ignored, how = f"{key}.{field.name}", f"set it to {other}"
            what = f"{ignored} would be ignored: {key}.name is {llm.name}, {reason}"
            raise UserError(f"{what}; {how}, or {ignored} to {as_word(unset)}")


def _llm_sections(value: Any, key: str = "") -> Iterator[tuple[str, LLMConfig]]:
    """Yield all LLM sections of a config with their keys, also those in lists and mappings."""
    if isinstance(value, LLMConfig):
        yield key, value
        return
    inner = vars(value) if is_dataclass(value) else value if isinstance(value, dict) else {}
    pairs = enumerate(value) if isinstance(value, list) else inner.items()
    for name, part in pairs:
        yield from _llm_sections(part, f"{key}.{name}" if key else str(name))


def check_tensor_parallel(rollout: RolloutConfig, processes: int) -> None:
    """Raise UserError if the processes do not divide into vLLM engines of equal size."""
    if processes % (gpus := rollout.vllm_tensor_parallel):
        uneven = f"rollout.vllm_tensor_parallel={gpus} does not divide {processes} processes into engines of equal size"
        raise UserError(f"{uneven}; change one of them")


def check_groups(config: Config, processes: int) -> None:
    """Raise UserError for a layout that splits a rollout group over processes or steps, because its ranks would be
    wrong, and for one that leaves a process without a judge call."""
    n, rl, concurrency = config.rollout.group_size, config.rl, config.judge.concurrency
    if processes < 1:
        raise UserError(f"{processes} processes cannot train; start at least one")
    shared = f"cannot be shared by {processes} processes"
    if concurrency < processes:
        how = f"set it to {processes} or more, or start fewer processes"
        raise UserError(f"judge.concurrency={concurrency} {shared}; {how}")
    batch = {"rl.groups": rl.groups} | ({} if rl.method == "online" else {"rl.batch_size": rl.batch_size})
    for key, value in batch.items():
        if value % processes:
            split = " without splitting a group" * (key == "rl.groups")
            how = f"set {key} to a multiple of {processes}, or start a number of processes that divides {value}"
            raise UserError(f"{key}={value} {shared}{split}; {how}")
    per_process, updates = rl.groups // processes * n, rl.updates_per_rollout
    layout = f"rl.groups={rl.groups} / {processes} processes x rollout.group_size={n}"
    undivided = f"does not divide the {per_process} trajectories of a process"
    if per_process % updates:
        raise UserError(f"rl.updates_per_rollout={updates} {undivided} ({layout}); change one of them")
    per_update = per_process // updates
    if per_update % (size := rl.micro_batch_size):
        divisors = [divisor for divisor in range(1, per_update + 1) if per_update % divisor == 0]
        undivided = f"does not divide the {per_update} trajectories of a process and update"
        how = f"set rl.micro_batch_size to one of {divisors}"
        raise UserError(f"rl.micro_batch_size={size} {undivided} ({layout} / rl.updates_per_rollout={updates}); {how}")
