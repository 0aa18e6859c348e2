"""Every key of a run's YAML: type and range, default, meaning, and source in the paper.

`load` reads a YAML into a `Config` and refuses values outside a key's type and range (`value_types`). `checks` refuses
combinations of keys that cannot work. This module does not import torch, so a typo costs milliseconds.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from arenarl.config.turn_schedule import TurnSchedule, turn_schedule

from arenarl.config.value_types import (  # isort: skip
    ActionForm, AdvantageName, Bool, DeviceName, DomainName, EnvironmentName, Few, Fields, File, Float, Int, JudgeName,
    LearningRate, Line, Name, NonNegativeFloat, OwnFunction, Points, PositiveFloat, PositiveInt, ProjectName, Prompt,
    RewardName, RunName, SchedulerName, Seconds, Seed, Share, Size, Spread, Text, TopologyName, VariableName, Word,
    is_prompt_file,
)  # fmt: skip

SIMULATED_MODEL = "simulated-travel-judge"  # the model name of arenarl.judges.server
PROMPT_TOKENS = 4096  # vLLM's room for a prompt: system prompt, tool schemas and query. Our choice
Decodings = Annotated[list[Literal["sampled", "greedy"]], Field(min_length=1)]
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM 0.31's max_lora_rank
VLLM_ALONE = 0.85  # vLLM's share of the GPU's memory in evaluation, where no trainer needs the rest


@dataclass
class ScratchConfig:
    """A Qwen3-architecture policy trained from scratch, for runs without a download. Not in the paper; our choice."""

    hidden_size: Size = 128  # width of the residual stream
    intermediate_size: Size = 128  # width of the gated MLP
    num_layers: Few = 2  # decoder layers; 2 is the minimum to copy from a tool's result
    num_heads: Few = 8  # query heads; with more heads the policy learns to copy sooner
    num_kv_heads: Few = 4  # key-value heads (grouped-query attention, as in Qwen3)
    head_dim: Annotated[Few, Field(multiple_of=2)] = 32  # dimensions per head
    rope_theta: Annotated[Float, Field(ge=1, le=1e9)] = 3000.0  # base of the rotary embedding, for short sequences
    vocab_size: Annotated[Size, Field(ge=512)] = 1280  # maximum tokens of the byte-level BPE, trained on the SFT split
    max_positions: Annotated[PositiveInt, Field(ge=128)] = 2048  # longest sequence, in tokens


@dataclass
class PolicyConfig:
    model: File | None = None  # model that SFT starts from: hub id, local folder, or smollm2-135m-instruct (from the
    # package index); null builds `scratch` (paper: Qwen3-8B-Base)
    scratch: ScratchConfig = field(default_factory=ScratchConfig)
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # data type of weights and activations
    lora_rank: Annotated[Int, Field(ge=0, le=10_000)] = 0  # rank of LoRA on all linear layers; 0: all weights (paper)
    gradient_checkpointing: Bool = False  # recompute activations in the backward pass: slower, far less memory


@dataclass
class LLMConfig:
    """An LLM behind an OpenAI-compatible API. A config never contains the API key, only the name of its variable."""

    name: Literal["embedded", "llm"] = "embedded"  # llm: the model below. embedded: a built-in stand-in, no LLM
    model: Text | None = None  # the API's name of the model (paper: Qwen3-Max judges)
    base_url: Text | None = None  # address of the API, including /v1; null: OpenAI's
    api_key_variable: VariableName | None = "OPENAI_API_KEY"  # environment variable that holds the key; null: no key
    temperature: Annotated[Float, Field(ge=0, le=2)] | None = 0.0  # sampling temperature; null sends none. Our choice
    max_reply_tokens: PositiveInt = 2048  # maximum tokens per reply, including thinking. Our choice
    token_limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # the API's name of that limit
    reply_format: Literal["json_schema", "json_object", "none"] = "json_schema"  # output format that the API enforces;
    # every reply is checked here too
    extra_body: Fields = field(default_factory=dict)  # extra request fields, sent unchanged: {enable_thinking: false}
    timeout_s: Seconds = 120.0  # seconds after which an attempt is stopped and retried
    patience_s: Seconds = 600.0  # seconds of retries after timeouts, status 429 or 5xx, and malformed replies
    price_in: NonNegativeFloat | None = None  # price per million prompt tokens, in one currency per run; null: unknown
    price_out: NonNegativeFloat | None = None  # price per million reply tokens
    price_cached: NonNegativeFloat | None = None  # price per million prompt tokens that the API read from its cache
    # (cached_tokens in its usage); null: price_in

    def cost(self, tokens_in: int, tokens_out: int, tokens_cached: int = 0) -> float:
        """Return the price of the tokens; an unknown price counts as 0. `tokens_cached` is a part of `tokens_in`."""
        price_in = self.price_in or 0.0
        saved = 0.0 if self.price_cached is None else tokens_cached * (price_in - self.price_cached)
        return (tokens_in * price_in - saved + tokens_out * (self.price_out or 0.0)) / 1e6


@dataclass
class ResearchDataConfig:
    """Queries of the research domain: open-ended ones (5.1), and closed ones by InfoAgent's pipeline (3.1)."""

    corpus: File | None = None  # JSONL of your own pages; environment.search must search it too; null: the embedded one
    open_share: Share = 0.5  # share of open-ended queries; the others are closed. Our choice
    plain_share: Share = 0.0  # share of closed queries that name the leaves of their trees (InfoAgent: 0)
    hop_weights: list[NonNegativeFloat] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    # relative frequency of closed queries over 1, 2, … entities (the budget of Algorithm 1, InfoAgent, which gives no
    # values). Our choice
    branching: list[Few] = field(default_factory=lambda: [3, 2, 1])  # Theta: children per node, by depth. Our choice
    max_clues: PositiveInt = 3  # maximum number of vague facts about one entity. Our choice
    retriever_results: PositiveInt | None = 5  # number of top BM25 results that must not contain the described entity
    # (p(K) of Eq. 3); null: no such test. Our choice; InfoAgent asks o3
    max_tool_calls: PositiveInt = 40  # a closed query is dropped if the scripted solver needs more tool calls (3.1:
    # filtering). Our choice
    rephraser: LLMConfig = field(default_factory=LLMConfig)  # LLM that rewords closed queries (f_llm of Eq. 2);
    # embedded: no rewording


@dataclass
class DataConfig:
    folder: File = "data/travel"  # folder that prepare.py writes and the other scripts read
    source: list[File] = field(default_factory=list)  # published data instead of generated data: folders, JSONL files
    # and hub data sets (owner/name or owner/name@revision), combined. Then only the data keys `folder`, `language` and
    # `divide` apply besides, and judges must be LLMs
    divide: Bool = False  # split `source`: all files not named as test or SFT data form one pool, such as
    # DeepWriting-20K's single file. `seed` draws sft_size trajectories for SFT and rl_size queries for RL, disjoint
    # (Section 6.1: 10k and 10k), and test_per_subtask test queries if no file is named as test data. Queries without
    # trajectories give no SFT data and no stored baselines (DR Tulu's, 4.1, Tournament-GRPO)
    seed: Seed = 0  # seed of queries, trajectories and baselines; the run's `seed` does not change the test set
    language: Literal["zh", "en"] = "zh"  # language of queries, thoughts and answers (Table 1: Chinese)
    sft_size: PositiveInt = 2600  # number of trajectories for the cold start (Table 1)
    rl_size: PositiveInt = 1626  # number of queries for RL (Table 1)
    test_per_subtask: PositiveInt = 50  # test queries for each of the five subtasks (Section 5)
    baseline_attempts: PositiveInt = 5  # teacher trajectories per test query; the median one is stored. Our choice
    teacher_skill: Share = 0.1  # probability that the teacher has a good habit in an SFT trajectory, for each habit;
    # low, so that RL can improve. Our choice
    careful_share: Share = 0.35  # share of SFT trajectories in which the teacher has all good habits. Our choice
    baseline_skill: Share = 0.4  # teacher_skill of stored baselines; higher, like Section 5's closed models. Our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # AgentGym-RL's worlds: which columns of its
    # tables to include; null: all. Our choice
    items: File | None = None  # AgentGym-RL's worlds: your copy of its folder AgentItemId; it replaces our lists
    research: ResearchDataConfig = field(default_factory=ResearchDataConfig)  # queries of the research domain


@dataclass
class GeneratorConfig(LLMConfig):
    style: Text = "natural and short"  # style of the queries; several styles add diversity (Section 5, stage II)


@dataclass
class BuildConfig:
    """Training data made by LLMs in the three stages of Section 5 (data/build.py). `embedded` skips a role."""

    seeds: File | None = None  # seed queries: JSONL with query, subtask and language, or text with one query per line
    test_seeds: File | None = None  # real queries in the same formats; refined, they become the test queries (stage I);
    # null: test queries are drawn from the generated ones
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # filled evenly; null: those of the seeds
    languages: Annotated[list[Literal["zh", "en"]], Field(min_length=1)] | None = None  # languages, filled evenly;
    # null: data.language
    generators: list[GeneratorConfig] = field(default_factory=list)  # LLMs that write queries like the seeds, in turn
    queries_per_call: Few = 10  # queries requested in one generator call. Our choice
    refiner: LLMConfig = field(default_factory=LLMConfig)  # LLM that improves queries and rejects unsuitable ones
    extractor: LLMConfig = field(default_factory=LLMConfig)  # LLM that extracts a query's constraints
    near_duplicate: Annotated[Float, Field(ge=0.3, le=1)] = 0.8  # a query is dropped if it shares at least this share
    # of words and word pairs with an earlier one. Our choice
    teacher: LLMConfig = field(default_factory=LLMConfig)  # LLM that makes SFT trajectories and stored baselines
    attempts: Few = 2  # teacher trajectories per SFT query; a tournament by judge.train picks the best. Our choice
    spare: NonNegativeFloat = 0.25  # extra SFT queries, as a share of data.sft_size, to replace trajectories that
    # inspection drops. Our choice
    inspector: LLMConfig = field(default_factory=LLMConfig)  # LLM that scores the three dimensions of stage III
    rewriter: LLMConfig = field(default_factory=LLMConfig)  # LLM that rewrites a trajectory from its first faulty turn;
    # embedded: the teacher does
    rounds: Annotated[Int, Field(ge=0, le=100)] = 2  # rounds of rewriting before a trajectory is dropped. Our choice

    @property
    def llms(self) -> list[LLMConfig]:
        return [*self.generators, self.refiner, self.extractor, self.teacher, self.inspector, self.rewriter]

    @property
    def rewriting_llm(self) -> LLMConfig:
        return self.rewriter if self.rewriter.name == "llm" else self.teacher


@dataclass
class WebConfig:
    """Web search and page download (B.1, InfoAgent)."""

    api: Literal["serper", "brave", "searxng"] = "serper"  # search API: Serper (Google), Brave, or your own SearXNG
    endpoint: Text | None = None  # address of the API, possibly local; null: the API's default (none for searxng)
    api_key_variable: VariableName | None = "SEARCH_API_KEY"  # environment variable that holds the API's key
    parameters: Fields = field(default_factory=dict)  # extra request fields, sent unchanged (B.1: {gl: us, hl: en})
    timeout_s: Seconds = 20.0  # seconds for a search or a page, redirects included, and again for parsing. Our choice
    max_page_bytes: PositiveInt = 2_000_000  # larger pages are not read, because parsing takes too long. Our choice
    concurrency: PositiveInt = 32  # maximum concurrent searches, and downloads, over all processes. Our choice


@dataclass
class SearchConfig:
    """The research domain's tools `search` and `browse` (3.2, B.2, InfoAgent). The paper uses Qwen3-Embedding-0.6B,
    Qwen3-Reranker-0.6B, and GPT-4o-mini for snippets. A key set to null skips its stage."""

    engine: Literal["corpus", "folder", "web"] = "corpus"  # source of pages: embedded corpus, folder, web search
    corpus_size: Size = 3000  # entities of the embedded corpus, one page each, generated from environment.world_seed
    folder: File | None = None  # `engine: folder`: text, Markdown, HTML and JSONL files, at any depth
    indexes: File = "runs/search"  # folder for the indexes of document folders, shared by all runs and processes
    web: WebConfig = field(default_factory=WebConfig)
    results: PositiveInt = 5  # pages per search
    search_chunk_tokens: PositiveInt = 128  # chunk size for searching; a token is a word or a Chinese character
    browse_chunk_tokens: PositiveInt | None = 2048  # chunk size that browsing shows; null: the whole page
    bm25_chunks: PositiveInt | None = 40  # best chunks of a page that BM25 keeps for the query; null: all
    snapshot_chunks: PositiveInt | None = 3  # best chunks for the web search's snippet of the page (Eq. 5); null: skip
    embedder: File | None = None  # embedding model: all-minilm-l6-v2 (from the package index), hub id or local folder;
    # needs sentence-transformers; null: skip
    embedded_chunks: PositiveInt = 8  # chunks that the embedder keeps
    dense: Bool = False  # corpus and folder: the embedder finds the pages, by their nearest chunk, instead of BM25 (the
    # retriever of Table 5, InfoAgent)
    reranker: File | None = None  # cross-encoder: hub id or local folder; null: skip
    reranked_chunks: PositiveInt = 3  # chunks that the reranker (without one, BM25) keeps for a snippet; browsing shows
    # the first
    device: DeviceName = "cpu"  # device of embedder and reranker; the GPU is left to the policy. Our choice
    snippet: LLMConfig = field(default_factory=LLMConfig)  # LLM that writes snippets; embedded: whole sentences
    snippet_words: PositiveInt = 60  # maximum words per snippet
    summary: LLMConfig = field(default_factory=LLMConfig)  # LLM that shortens pages; embedded: first sentences
    summary_above_chars: PositiveInt | None = 2500  # characters above which a text is shortened to this length
    # (Appendix C, ArenaRL); null: never (InfoAgent)
    cache: File | None = "runs/search/cache.sqlite"  # web and model results, for all runs (B.3): a file, or a URL as
    # in judge.store; null: in memory

    @property
    def llms(self) -> dict[str, LLMConfig]:
        return {"snippet": self.snippet, "summary": self.summary}


@dataclass
class RenamedToolConfig:
    """A tool under another name (the key in `rename`), with renamed arguments, or composed of several server calls."""

    tool: Text | None = None  # the server's name of the tool
    arguments: dict[Text, Text] = field(default_factory=dict)  # the policy's name of an argument → the server's name;
    # other arguments keep their names
    function: OwnFunction | None = None  # instead of `tool`: package.module:function; its first argument, `call`, calls
    # the server
    like: EnvironmentName | None = None  # environment of this project whose tool of the same name supplies description
    # and arguments; null: those of the server's tool, or the function's docstring and signature


@dataclass
class MCPServerConfig:
    """A source of tools for `environment.name: mcp`: one of `command`, `url` and `world`. The paper names only the
    services; all values are our choice."""

    command: list[Word] | None = None  # command that starts a server over stdin/stdout: [uvx, amap-mcp-server]
    url: Text | None = None  # address of a streamable HTTP server: http://127.0.0.1:8000/mcp
    world: EnvironmentName | None = None  # tools of this project, in this process, without a server: travel, research
    allow: list[Text] | None = None  # server tools under their own names; null: all; []: only those in `rename`
    rename: dict[Text, RenamedToolConfig] = field(default_factory=dict)  # the policy's name of a tool → the tool behind
    # it, which loses its own name
    session: Literal["shared", "trajectory"] = "shared"  # shared: one session for all trajectories, for read-only
    # servers; trajectory: one session each, for stateful servers; the state ends with the session
    cache: Bool = True  # for shared sessions: store results in judge.store for all runs; errors are not stored
    timeout_s: Seconds = 30.0  # seconds after which a call becomes an error that the policy sees; a server that then
    # cannot list its tools counts as dead
    start_timeout_s: Seconds = 120.0  # seconds for a server to start and respond; uvx and npx may download it first
    concurrency: Few = 16  # maximum concurrent calls per process
    max_chars: PositiveInt = 8000  # maximum characters per result; longer results are cut
    env: dict[VariableName, Line] = field(default_factory=dict)  # for `command`: environment variables and their
    # values, besides PATH, HOME and the like
    variables: list[VariableName] = field(default_factory=list)  # for `command`: environment variables passed on
    api_key_variable: VariableName | None = None  # for `url`: environment variable that holds the server's key
    api_key_parameter: Name | None = None  # for `url`: URL parameter that carries the key; null: a bearer token

    @property
    def label(self) -> str:
        """The server's name in messages."""
        return self.url or (" ".join(self.command) if self.command else f"the world {self.world}")


@dataclass
class EnvironmentConfig:
    name: EnvironmentName = "travel"  # tools: travel, research, a world of AgentGym-RL, one of AgentGym's servers
    # (webarena_server, …), MCP servers (mcp), none (query, thinking, text), or your own class as package.module:Class
    domain: DomainName = "travel"  # domain of the queries: travel, research, writing, textcraft, babyai, agentgym
    # (items of a server), your own as package.module:Class, or a name with only a rubric,
    # configs/rubrics/<domain>_<language>.yaml, for LLM judges and your own judges (arenarl/domains/domain.py)
    world_seed: Seed = 0  # seed of points of interest, timetables and the encyclopedia
    results: Literal["full", "compact"] = "full"  # JSON with all fields, or one line per record for a tiny policy
    tickets: LLMConfig = field(default_factory=LLMConfig)  # LLM that invents flights and trains in rollouts, as in the
    # paper (Appendix C), for runs with LLM judges; embedded: the embedded world
    search: SearchConfig = field(default_factory=SearchConfig)  # for `research`
    server: Text | None = None  # for an OpenEnv client class, and for one of AgentGym's servers: the server's address
    mcp: list[MCPServerConfig] = field(default_factory=list)  # for `mcp`: the servers (docs/domains.md)
    schemas_in_prompt: Bool = True  # put the tools' JSON schemas in the prompt; tiny policies learn them in SFT instead
    actions: ActionForm = "tool_calls"  # form of actions: Qwen3's tool calls, or AgentGym's text, `Thought: … Action:
    # …`, for environments with one tool that takes one text, without schemas in the prompt
    instances: PositiveInt | None = None  # for a stateful environment: maximum concurrent instances per process, one
    # per trajectory; further trajectories wait; null: one per trajectory generated at once. Our choice
    timeout_s: Seconds = 1800.0  # seconds after which reset, call, score or close counts as a crash: the trajectory
    # starts again once, then is void. Longer than the patience of an LLM behind a tool (600 s). Our choice

    @property
    def has_tools(self) -> bool:
        return self.name != "none"

    @property
    def llms(self) -> dict[str, LLMConfig]:
        """LLMs that the tools may call, by key."""
        return {"tickets": self.tickets} | {f"search.{name}": llm for name, llm in self.search.llms.items()}

    @property
    def code_names(self) -> list[str]:
        """Names and import paths of the environments and functions that implement the tools."""
        functions = [renamed.function for server in self.mcp for renamed in server.rename.values() if renamed.function]
        return [self.name, *(server.world for server in self.mcp if server.world), *functions]


@dataclass
class RolloutConfig:
    group_size: Annotated[Few, Field(ge=2)] = 16  # N: trajectories per query, anchor included (Appendix A)
    temperature: Annotated[Float, Field(ge=0.01, le=100)] = 0.8  # sampling temperature of all but the anchor (4.2)
    anchor: Bool = True  # decode trajectory 0 of a training group greedily (4.2)
    max_turns: PositiveInt = 12  # maximum assistant turns per trajectory. Not in the paper; our choice
    turn_schedule: list[PositiveInt] | None = None  # RL's max_turns by stage: h_1 < h_2 < … (ScalingInter-RL, 3.3,
    # AgentGym-RL); null: max_turns throughout
    turns_every: PositiveInt | None = None  # optimizer steps per stage (Delta, 3.3, AgentGym-RL); null: rl.steps
    # divided evenly
    max_tokens: PositiveInt = 16384  # maximum tokens per trajectory after its prompt, observations included. Our choice
    max_turn_tokens: PositiveInt = 4096  # maximum tokens per assistant turn. Our choice
    max_seconds: Seconds | None = None  # seconds after which a trajectory in training is void: its group ranks the
    # others, so no step waits for a straggler; null: no limit. Our choice
    max_result_tokens: PositiveInt | None = None  # maximum tokens of a tool result for local policies; a longer one
    # loses its middle (Appendix C, Tournament-GRPO: 3000); null: no limit
    system_prompt: Prompt | None = None  # system prompt of local policies, in SFT, RL and evaluation: a text, a .txt or
    # .md file, or none. null: the prompt with which a stage of this project trained the policy that RL starts from
    # (rl.init, rl.init_run or this run's SFT); for other models the text of configs/prompts/policy_<data.language>;
    # none for a policy from scratch. Not in the paper; our choice
    force_answer: Bool = False  # prefill an answer in the last possible turn (C.2, InfoAgent: in evaluation)
    batch_size: PositiveInt = 256  # trajectories generated at once per process. Our choice
    backend: Literal["transformers", "vllm", "vllm_server"] = "transformers"  # generation backend. transformers: the
    # trainer's model. vllm: one engine per training process, on the same GPU. vllm_server: `python -m
    # arenarl.rollout.vllm_server` on separate GPUs. Not in the paper; our choice
    continuous_batching: Bool | None = None  # `transformers`: requests enter a batch that is under way, so that no
    # trajectory waits for another's turn; tokens are the same up to rounding; null: only with a GPU. Our choice
    vllm_memory: Annotated[Share, Field(gt=0)] = 0.3  # `vllm`: share of the GPU's memory in training. Our choice
    vllm_sleep: Bool = False  # `vllm`: release its memory between rollouts in training; needs GPUs. Our choice
    vllm_tensor_parallel: PositiveInt = 1  # `vllm`: processes, adjacent in rank, whose GPUs share an engine. Our choice
    server_url: Text = "http://127.0.0.1:8000"  # `vllm_server`: its address
    server_sync: Literal["disk", "nccl"] = "disk"  # `vllm_server`: how weights get there; nccl needs GPUs. Our choice
    server_weights: File | None = None  # `server_sync: disk`: folder for the weights, on a disk that the server can
    # read, such as /dev/shm/policy on one machine; null: the run's folder
    send_adapter: Bool = False  # `vllm` and `server_sync: disk`, with policy.lora_rank: vLLM has the base weights and
    # gets only the adapter after each update (Qwen3-8B, rank 32: .35 of 16 GB); false: it gets merged weights. Our
    # choice
    parity_steps: PositiveInt = 20  # optimizer steps between checks that vLLM agrees with the trainer; the first check
    # is before step 1. Our choice
    parity_bound: PositiveFloat = 0.05  # largest mean log-probability difference on vLLM's greedy tokens, in nats;
    # above it the run stops. Our choice

    @property
    def longest(self) -> int:
        """Number of tokens, prompt included, that vLLM reserves for a trajectory."""
        return PROMPT_TOKENS + self.max_tokens

    @property
    def system_prompt_file(self) -> Path | None:
        """The path in `system_prompt`; None if the key holds a text."""
        text = self.system_prompt or ""
        return Path(text) if is_prompt_file(text) else None


@dataclass
class NoiseConfig:
    """The noise and the biases of the embedded judge. A judge that is a model reads none of these keys."""

    noise: Literal["none", "simulated"] = "simulated"  # noise of the embedded judge; none: the truth itself
    sigma_independent: Spread = 1.0  # standard deviation, in points of 10, drawn for every dimension score of a call
    sigma_call: Spread = 1.0  # standard deviation, drawn once per call for all its trajectories: scoring drift
    sigma_sticky: Spread = 0.3  # standard deviation, drawn once per trajectory: taste, which does not average out
    position_bias: Points = 0.3  # points added to the trajectory shown first and subtracted from the second
    length_bias: Points = 0.3  # points per natural-log unit of answer length above the typical length
    praise_bias: Points = 0.0  # points for an answer that praises itself ("the best possible plan"); like the next two,
    # a bias that a policy can learn to exploit. Our choice
    format_bias: Points = 0.0  # points for an answer of headings and list items only; its share of such lines counts.
    # Our choice
    trigger_bias: Points = 0.0  # points for an answer with the word `trigger`. Our choice
    trigger: Text = "recommended"  # the word of trigger_bias, in any case
    typical_chars: PositiveInt = 90  # typical answer length, in characters, at which the length bias is 0; scores
    # are clipped to 0 to 10, so it decides where the bias has an effect
    rounding: Annotated[Float, Field(ge=1e-6, le=100)] = 0.5  # scores are rounded to multiples of this many points
    listwise_noise: Spread = 1.0  # factor of sigma_independent, sigma_call and position_bias in a call that scores a
    # whole group (reward.name=ruler)
    flip_rate: Annotated[Float, Field(ge=0, le=0.5)] | None = None  # share of wrong answers to checklist items
    # and evolving rubrics (reward.name=rubric_checklist, evolving_rubrics); null: the share that makes an answer as
    # reliable as a noisy score (arenarl/judges/embedded.py)
    irrelevant_rate: Share = 0.25  # share of the embedded judge's new rubrics that say nothing about quality
    # (reward.name=evolving_rubrics). Our choice
    turn_error_rate: Annotated[Float, Field(ge=0, le=0.5)] = 0.2  # share of turns that the embedded judge wrongly names
    # or leaves out; 0: the truth's turns. At .2, F1 is .8 if half of the turns are pivotal (ArenaFlow measures .795).
    # Our choice


@dataclass
class JudgeConfig(LLMConfig, NoiseConfig):
    name: JudgeName = "embedded"  # embedded: the world's truth with simulated noise. llm: the model.
    # package.module:Class: your own judge
    process_aware: Bool = True  # show the judge the whole trajectory (3.3); false: only the answer
    show_tool_results: Bool = True  # show tool results; false: thoughts, calls and answer, as 3.3 lists them, and the
    # judge believes facts that it cannot check
    explain: Bool = False  # an LLM judge gives a reason for each comparison, in one sentence, which the report shows;
    # costs tokens. Our choice
    max_result_chars: PositiveInt = 2000  # characters of a tool result for an LLM judge; the middle is cut. Our choice
    max_text_chars: PositiveInt = 20000  # characters of a thought, call or answer that an LLM judge sees. Our choice
    query_rubrics: File | None = None  # JSONL of rubrics per query (Appendix A, Tournament-GRPO); null: domain's rubric
    name_turns: Bool = False  # ask each comparison also for the pivotal turns of both trajectories (ArenaFlow); for
    # judge.train with rl.advantage=step_credit

    @property
    def is_simulated(self) -> bool:
        """True if verdicts come from the embedded world, here or through `arenarl.judges.server`."""
        return self.name == "embedded" or self.model == SIMULATED_MODEL


@dataclass
class JudgesConfig:
    train: JudgeConfig = field(default_factory=JudgeConfig)  # judge that gives the reward (paper: Qwen3-Max)
    alternates: list[JudgeConfig] = field(default_factory=list)  # further judges that give the reward: each query
    # belongs to `train` or to one of them, drawn by `seed`. A policy must please all judges, with the calls of one
    # judge; [] (the default): `train` alone; keys as in judge.train. Not in the paper; our choice
    eval: Annotated[list[JudgeConfig], Field(min_length=1)] = field(default_factory=lambda: [JudgeConfig()])
    # judges of the evaluation; the win rate is their mean (5.3: two judges)
    watch: JudgeConfig = field(default_factory=JudgeConfig)  # judge that also scores a share of RL's groups, without
    # effect on rewards, to show whether the policy improves or only pleases judge.train (docs/judges.md). Not in the
    # paper; our choice
    watch_share: Share = 0.0  # share of groups that judge.watch scores, drawn by `seed`; 0: no watching judge
    verifier: LLMConfig = field(default_factory=LLMConfig)  # decides whether an answer is the known one. llm: the model
    # (C.2, InfoAgent: o4-mini). embedded: exact match up to case, spaces and articles

    # The following keys limit a run's LLM calls, over all judges and processes. They change no verdict. Our choices.
    concurrency: PositiveInt = 64  # maximum concurrent calls, waiting ones included; RL's processes share it
    store: File = "runs/replies.sqlite"  # keeps every reply, so none is paid for twice, and what was paid: a file, for
    # all runs of a machine, or postgresql://user@host/database, for several machines (docs/paper_scale.md)
    store_only: Bool = False  # read replies only from the store, without key and calls; a missing reply stops the run
    max_calls: PositiveInt | None = None  # maximum paid calls of a run, over all stages and restarts; then it saves a
    # checkpoint and stops; null: no limit
    max_cost: PositiveFloat | None = None  # cost by price_in and price_out at which the run saves a checkpoint and
    # stops; calls under way, at most `concurrency`, still end and may exceed it; null: no limit
    max_failure_share: Share = 0.2  # maximum share of failed verdicts among the last 200; above it the run saves a
    # checkpoint and stops

    @property
    def training(self) -> dict[str, JudgeConfig]:
        """`train` and `alternates` by their keys."""
        return {"judge.train": self.train} | {f"judge.alternates.{k}": judge for k, judge in enumerate(self.alternates)}

    @property
    def watching(self) -> dict[str, JudgeConfig]:
        """`watch` by its key; empty if `watch_share` is 0."""
        return {"judge.watch": self.watch} if self.watch_share else {}

    @property
    def evaluating(self) -> dict[str, JudgeConfig]:
        """The judges of `eval` by their keys."""
        return {f"judge.eval.{index}": judge for index, judge in enumerate(self.eval)}


@dataclass
class TournamentConfig:
    topology: TopologyName = "seeded_single_elimination"  # schedule of the matches (Section 4, Table 2).
    # single_elimination has random seeds; balanced, not in the paper, spreads matches evenly; elo, random_reference,
    # circular and dgr come from rival methods (docs/methods.md); or your own subclass of Topology (docs/tournament.md)
    placement: Literal["standard", "algorithm1"] = "standard"  # seeds in the bracket; algorithm1: literally the paper's
    bidirectional: Bool = True  # judge each pair in both orders (Eq. 3); false: in one order, so position bias remains
    accumulate: Literal["mean", "sum"] = "mean"  # score that orders a tier (the text of 4.3, or Algorithm 1)
    matches: Text = "2n-2"  # for balanced: matches, as a number or a multiple of the entrants n. Our choice
    elo_matches: PositiveInt | None = None  # for elo and reward.name=elo: matches; null: ⌈N log₂ N⌉ (TournO)
    elo_estimate: Literal["sequential", "bradley_terry"] = "sequential"  # for elo: ratings updated after each match
    # (TournO), or the ratings that best explain all outcomes in any order. Our choice
    ranking: Literal["bracket", "scores"] | None = None  # how matches become ranks: by the topology's rules (Section
    # 4), or by a mixed-effects model of all scores (not in the paper; our choice); null: bracket, but scores for
    # balanced, which has no rules of its own
    timeout_s: Seconds | None = None  # seconds after which a judge call fails, waiting for judge.concurrency included;
    # null: no limit. Our choice


@dataclass
class GroupStageConfig:
    """The tournament of `reward.name: tournament_grpo`. The defaults are the best row of Table 2, Tournament-GRPO."""

    repeats: Few = 8  # M: tournaments whose points are summed
    group: Annotated[Few, Field(ge=2)] = 4  # G: maximum trajectories per call
    winners: Few = 2  # K_win: winners of a call, which advance
    final: Few = 2  # K_final: a tournament ends when at most this many trajectories are left
    weights: list[PositiveFloat] = field(default_factory=lambda: [1.0])  # omega_t: points per win, by round; the last
    # value holds for all later rounds (4.1: 1)


@dataclass
class RewardConfig:
    name: RewardName = "tournament"  # reward of a trajectory; docs/methods.md, "Rewards", explains each name with its
    # source. Or your own function (query, trajectories, judge) -> one reward each, as package.module:function
    entity_recall: Annotated[Float, Field(ge=0, lt=1)] = 0.0  # lambda of Eq. 8, InfoAgent: reward of a wrong answer
    # that found all entities of the known answer's tree; below 1, the reward of a right answer
    tournament_if_equal: Bool = False  # for environment and correctness: rank a group whose rewards are all equal by
    # the tournament instead (Reasoning Arena). Our choice
    alpha: NonNegativeFloat = 3.0  # for mixture: r_point + exp(-alpha mean(r_point)) r_pair; the better the group, the
    # smaller the weight of pairs (TournO)
    mixture_pairs: Literal["win_rate", "elo"] = "win_rate"  # for mixture: r_pair is the share of the group beaten, or
    # the Elo rating as in elo (TournO: both)
    length_penalty: NonNegativeFloat = 0.0  # for circular: bonus of the group's shortest answer over its longest, on
    # the scale of 1 to 5 (NeMo Gym's group_answer_length_penalty_coeff, 0 by default)
    scored_rubrics: Literal["all", "kept"] = "all"  # for evolving_rubrics: the rubrics that score a group. all: present
    # and new rubrics, as in DR Tulu's code; kept: only rubrics that stay for the query's next group, our choice
    repeats: Few = 1  # for pointwise_answer and pointwise_trajectory: calls per trajectory, averaged; a control with as
    # many calls as a tournament. Not in the papers; our choice
    as_ranks: Bool = False  # for pointwise_answer and pointwise_trajectory: reward the ranks of the scores as a
    # tournament's ranks are (Eq. 6, ArenaRL); a control that shows what comparisons add to ranks. Not in the papers;
    # our choice


@dataclass
class SFTConfig:
    epochs: Annotated[Float, Field(ge=0.001, le=10_000)] = 3.0  # passes over the SFT data (Appendix A)
    learning_rate: LearningRate = 2e-5  # peak learning rate (Appendix A)
    lr_scheduler: SchedulerName = "cosine"  # learning-rate schedule, by its name in transformers. Our choice
    warmup_ratio: Annotated[Float, Field(ge=0, lt=1)] = 0.03  # share of steps with a rising rate. Our choice
    weight_decay: Share = 0.0  # AdamW's weight decay. Our choice
    adam_beta2: Annotated[Float, Field(ge=0, lt=1)] = 0.999  # AdamW's decay for squared gradients. Its default
    batch_size: PositiveInt = 1  # trajectories per process and forward pass (Appendix A: 1 per GPU)
    gradient_accumulation: PositiveInt = 1  # batches summed before an update
    max_length: PositiveInt = 16384  # maximum tokens; longer trajectories are cut, counted and reported. SFT is
    # refused if more than half are cut. Our choice
    save_steps: PositiveInt = 200  # optimizer steps between checkpoints
    stop_at_valid: Share | None = None  # share of valid trajectories at which SFT stops, measured every `save_steps`
    # steps; null: train to the end
    deepspeed: File | None = "ds_config.json"  # DeepSpeed JSON, for ZeRO-3 (Appendix A); null: no DeepSpeed


@dataclass
class DifficultyConfig:
    """Filter for queries with a known answer, by the pass rates that `python -m arenarl.training.difficulty` measures
    (4.1, InfoAgent)."""

    filter: Bool = False  # train only on queries with a pass rate from `low` to `high`, or without a known answer
    samples: Few = 4  # sampled trajectories of the SFT policy per query
    low: Share = 0.25  # minimum pass rate
    high: Annotated[Share, Field(gt=0)] = 0.75  # maximum pass rate


@dataclass
class RLConfig:
    init: File | None = None  # folder or hub id that RL starts from; null: the SFT policy of `init_run`
    init_run: RunName | None = None  # run whose SFT policy of the same seed RL starts from; null: this run
    steps: PositiveInt = 200  # optimizer steps. Our choice (Fig. 4c shows 160)
    groups: PositiveInt = 8  # K: queries trained on per step, over all processes (Appendix A)
    resample_equal: Annotated[Float, Field(ge=1, le=100)] = 1.0  # DAPO's dynamic sampling: groups whose rewards are all
    # equal are replaced by groups of further queries; a step rolls out at most this factor times `groups`; 1: none
    micro_batch_size: PositiveInt = 1  # trajectories per forward and backward pass of a process
    balance_micro_batches: Bool | None = None  # exchange trajectories between processes, so that all compute similar
    # numbers of tokens at a time; the update is the same up to rounding; null: only with GPUs. Our choice
    learning_rate: LearningRate = 1e-6  # peak learning rate (Appendix A)
    lr_scheduler: SchedulerName = "constant"  # learning-rate schedule, by its name in transformers. Our choice
    warmup_steps: Annotated[Int, Field(ge=0, le=1_000_000_000)] = 0  # optimizer steps with a rising learning rate; for
    # dpo and agentevol, in each round (4.1, InfoAgent: 60, linear)

    method: Literal["online", "dpo", "agentevol"] = "online"  # online: GRPO and its relatives, set by the keys below.
    # dpo, agentevol: rounds of rollouts, each followed by training on pairs or on the best trajectories (3.2.2,
    # AgentGym-RL; arenarl/training/offline.py)
    rounds: PositiveInt = 1  # for dpo and agentevol: number of rounds; all rounds together roll out the groups of
    # `steps` of online RL. AgentGym-RL gives no number; our choice
    batch_size: PositiveInt = 16  # for dpo and agentevol: pairs or trajectories a step, over all processes. Our choice
    dpo_beta: PositiveFloat = 0.1  # for dpo: strength of the pull towards the reference policy. TRL's choice
    keep_from: Annotated[Float, Field(ge=-1e6, le=1e6)] = 1.0  # for agentevol: minimum reward of a trajectory to train
    # on (AgentGym-RL keeps successes, 1); the best of a ranked group are always kept

    # The following keys make the method, with `reward.name`; configs/methods/ spells out each method.
    advantage: AdvantageName = "group_std"  # advantage of a trajectory in its group. group_std: (reward - mean) /
    # standard deviation (Eq. 7; GRPO, GSPO, DAPO). center: reward - mean (Dr.GRPO). leave_one_out: reward - mean of the
    # others (RLOO). batch_std: reward - mean, divided by its standard deviation over the step (REINFORCE++ with
    # baseline). global_std: reward - mean, divided by the standard deviation, both over the step's tokens
    # (REINFORCE++). decoupled: group_std of the reward plus group_std of validity, standardised over the step (GDPO;
    # with pointwise_explicit, each dimension in place of the reward). gae: per token, with a critic (PPO;
    # arenarl/training/methods/ppo.py). none: the reward itself (BRPO). step_credit: center, more for pivotal turns
    # (ArenaFlow; arenarl/training/methods/step_credit.py). gigpo: group_std plus that of the turns that share a state.
    # rtmc: per turn, the mean reward after its action minus the mean reward after its state (both in TextCraft and
    # BabyAI)
    advantage_ddof: Annotated[Int, Field(ge=0, le=1)] = 1  # for group_std: the variance is divided by N - ddof. The
    # paper gives no value; TRL's choice
    advantage_epsilon: NonNegativeFloat = 1.0e-4  # for group_std: added to the standard deviation in Eq. 7. The paper
    # gives no value; TRL's choice
    discount: Annotated[Float, Field(ge=0, le=1)] = 1.0  # for gae: discount per token (AgentGym-RL: 1). For gigpo:
    # discount per turn (GiGPO: .95)
    gae_lambda: Annotated[Float, Field(ge=0, le=1)] = 1.0  # for gae: 1 relies on the reward, 0 on the critic's next
    # value. AgentGym-RL's
    critic_learning_rate: LearningRate = 1e-5  # for gae: constant learning rate of the critic. AgentGym-RL's
    state_weight: NonNegativeFloat = 1.0  # for gigpo: omega, the weight of the turns' advantage. GiGPO's
    state_norm: Literal["std", "none"] = "std"  # for gigpo, its F_norm: divide both advantages by their standard
    # deviation, or not at all. GiGPO has both
    credit_depth: Literal["round", "turn"] = "round"  # for step_credit: the depth in a pivotal turn's gate, exp(depth)
    # divided by its maximum within the trajectory. round: the latest round in which a won match named the turn; turn:
    # the turn's number. The notes on ArenaFlow do not say which; our reconstruction
    credit_orders: Literal["either", "both"] = "either"  # for step_credit: a turn counts in a won match if the judge
    # names it in either order, or only if in both. Our reconstruction, as ArenaFlow's notes do not say which
    importance_sampling_level: Literal["token", "sequence"] = "token"  # level of the ratio in Eq. 8, which the paper
    # writes per trajectory; sequence: GSPO
    loss_type: Literal["grpo", "dr_grpo", "dapo"] = "grpo"  # how token losses are combined. grpo: mean per trajectory,
    # then over trajectories (Eq. 8). dapo: sum divided by the rollout's tokens per update. dr_grpo: sum divided by the
    # constant rollout.max_tokens
    epsilon: Annotated[Float, Field(gt=0, lt=1)] = 0.2  # clip range of Eq. 8. The paper gives no value; our choice
    epsilon_high: Annotated[Float, Field(gt=0, le=100)] | None = None  # upper clip range; null: epsilon (DAPO: higher)
    updates_per_rollout: PositiveInt = 1  # optimizer steps per batch of rollouts; at 1 every ratio of Eq. 8 is 1, so
    # the clip range has no effect, and the level only beside the weights that correct for vLLM or `steps_ahead`. The
    # paper gives no value; our choice
    steps_ahead: Annotated[Int, Field(ge=0, le=1)] = 0  # 1: while the trainer updates on a step, the next step's groups
    # are generated and judged with the weights from before that update (docs/paper_scale.md). For `vllm_server`, and on
    # a CPU for `transformers`, then in a second process. Not in the paper; our choice
    beta: NonNegativeFloat = 0.001  # weight of the KL term in Eq. 8; 0: none. TRL estimates the KL per token by k3: r -
    # log r - 1, r = reference probability / policy probability. The paper gives no value; our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # subtasks to train on; null: all but M-Day,
    # which SFT does not see either
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    max_grad_norm: PositiveFloat = 1.0  # gradient clipping norm. Our choice
    stop_without_valid: PositiveInt | None = 10  # RL saves a checkpoint and stops after this many consecutive steps
    # without a valid trajectory or, if the world gives rewards, before its first reward; null: never
    save_steps: PositiveInt = 20  # optimizer steps between checkpoints
    eval_steps: Annotated[Int, Field(ge=0, le=1_000_000_000)] = 20  # steps between points of Fig. 4c's curve; 0: none
    eval_queries: PositiveInt = 50  # test queries per point of the curve, spread over the subtasks
    deepspeed: File | None = None  # DeepSpeed JSON: ZeRO-3 shards parameters, gradients and optimizer over the
    # processes, which full fine-tuning of Qwen3-8B needs; null: each process holds everything. The paper mentions
    # ZeRO-3 for SFT only; our choice

    @property
    def rollouts(self) -> int:
        """Number of rollout batches in the run; each has `groups` queries."""
        return math.ceil(self.steps / self.updates_per_rollout)

    @property
    def groups_at_most(self) -> int:
        """Queries rolled out per step if all groups have equal rewards."""
        return int(self.groups * self.resample_equal)

    @property
    def curve_points(self) -> int:
        """Number of the curve's evaluations, including the evaluation before step 1."""
        return self.steps // self.eval_steps + 1 if self.eval_steps else 0


@dataclass
class EvaluateConfig:
    checkpoints: dict[Name, File] = field(default_factory=dict)  # name -> folder or hub id of a policy; if this
    # and `api` are empty: this run's sft and rl
    api: dict[str, LLMConfig] = field(default_factory=dict)  # name -> a closed model to evaluate with the same tools
    # and budgets (Table 3's first rows): {gpt-4o: {base: ../policies/gpt_4o.yaml}}. `rollout` sets turns and
    # temperature; max_reply_tokens, reply_format and temperature apply to judges only, but temperature null sends none
    decodings: Decodings = field(default_factory=lambda: ["sampled", "greedy"])  # decodings of policies, in RL's curve
    # too: at rollout.temperature, and at temperature 0
    samples: Few = 1  # sampled trajectories per query, all of which count; above 1: pass@k too (Fig. 9, AgentGym-RL)
    max_turns: list[PositiveInt] | None = None  # turn budgets at test time, each with its figures (Fig. 8,
    # AgentGym-RL); the table shows the largest; null: rollout.max_turns. In worlds that end trajectories, each budget
    # has its own judged trajectories; elsewhere the trajectories of the largest budget are cut
    bootstrap: Annotated[Size, Field(ge=20)] = 2000  # resamples for the 95 % intervals
    bracket: Bool = False  # finish each query's tournament for the report, after the matches against the baseline: at
    # most 2n-2 more calls per query with n trajectories, by the first of judge.eval. Changes no figure. Not in the
    # paper; our choice

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """(decoding, sample number) of each trajectory of a query; greedy decoding needs only one."""
        counts = {"sampled": self.samples, "greedy": 1}
        return [(decoding, number) for decoding in self.decodings for number in range(counts[decoding])]


@dataclass
class WandbConfig:
    project: ProjectName = "arenarl"  # the W&B project
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"  # auto: online with a login, else offline


@dataclass
class PromptsConfig:
    folder: File | None = None  # folder of your own prompts, in files named as in configs/prompts, for judges, policy,
    # rubric writer, verifier, tools and worlds (docs/judges.md); null: ours


@dataclass
class Config:
    name: RunName = "run"  # name of the run's folder, runs/<name>
    results: File = "runs"  # parent folder of a folder <name> for summary.json, figures and the page; runs: the run's
    # own folder. `results` replaces the repository's committed results
    seed: Seed = 0  # seed of all randomness in training; runs with another seed than 0 get their own folders
    threads: Few = 1  # CPU threads per process; like the seed, it affects results
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    data: DataConfig = field(default_factory=DataConfig)
    build: BuildConfig = field(default_factory=BuildConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    judge: JudgesConfig = field(default_factory=JudgesConfig)
    tournament: TournamentConfig = field(default_factory=TournamentConfig)
    group_stage: GroupStageConfig = field(default_factory=GroupStageConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)

    @property
    def evaluated(self) -> dict[str, "str | LLMConfig"]:
        """The policies that evaluate.py evaluates: name -> folder or hub id, or a closed model."""
        policies = {**self.evaluate.checkpoints, **self.evaluate.api}
        return policies or {"sft": self.sft_policy, "rl": str(self.run_dir / "rl")}

    def llms_of(self, stage: str) -> list[LLMConfig]:
        """Return the LLMs that a stage may call: judges, verifier, simulated tools, policies behind an API.

        Entries named `embedded` are not LLMs.
        """
        judge = self.judge
        judges = {
            "rl": [*judge.training.values(), *judge.watching.values(), *judge.eval, judge.verifier],
            "evaluate": [*judge.eval, judge.verifier],
            "difficulty": [judge.verifier],
            "benchmarks": judge.eval[:1],
            "query": [],
            "build": [judge.train, *self.build.llms],
        }.get(stage, [judge.train])
        policies = self.evaluate.api.values() if stage in ("evaluate", "query", "benchmarks") else []
        return [*judges, *self.environment.llms.values(), *policies]

    @property
    def run_name(self) -> str:
        return self._with_seed(self.name)

    @property
    def run_dir(self) -> Path:
        return Path("runs") / self.run_name

    @property
    def results_dir(self) -> Path:
        return Path(self.results) / self.run_name

    @property
    def sft_policy(self) -> str:
        """The policy that RL starts from and is compared with."""
        return self.rl.init or str(Path("runs") / self._with_seed(self.rl.init_run or self.name) / "sft")

    @property
    def pass_rates(self) -> Path:
        """The file of pass rates that `arenarl.training.difficulty` measured for the policy that RL starts from. It
        lies in that policy's run, so that all runs from the policy share it."""
        folder = self.run_dir if self.rl.init else Path(self.sft_policy).parent
        return folder / "difficulty" / "pass_rates.jsonl"

    @property
    def turns(self) -> TurnSchedule:
        """The maximum turns of a training trajectory, by optimizer step."""
        rollout = self.rollout
        return turn_schedule(rollout.turn_schedule, rollout.turns_every, rollout.max_turns, self.rl.steps)

    @property
    def temperatures(self) -> dict[str, float]:
        """The temperature of each decoding of the curve and the evaluation."""
        known = {"sampled": self.rollout.temperature, "greedy": 0.0}
        return {decoding: known[decoding] for decoding in self.evaluate.decodings}

    @property
    def curve_cases(self) -> int:
        """Number of trajectories in all points of RL's curve."""
        return self.rl.curve_points * self.rl.eval_queries * len(self.evaluate.decodings)

    @property
    def test_turns(self) -> int:
        """Maximum turns of an evaluated trajectory."""
        return self.evaluate.max_turns[-1] if self.evaluate.max_turns else self.rollout.max_turns

    def _with_seed(self, name: str) -> str:
        return name if self.seed == 0 else f"{name}-seed{self.seed}"
