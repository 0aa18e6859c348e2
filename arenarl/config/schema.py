"""Every key of a run's YAML: its type and range, its default, what it means and its source in the paper.

`load` reads a YAML into a `Config` and refuses what is outside a key's type and range (`value_types`); rules between
keys are in `checks`. Nothing here imports torch: a typo costs milliseconds, not a model load.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from arenarl.config.turn_schedule import TurnSchedule, turn_schedule

from arenarl.config.value_types import (  # isort: skip
    ActionForm, Bool, DeviceName, DomainName, EnvironmentName, Few, Fields, Float, Int, JudgeName, LearningRate,
    Line, Name, NonNegativeFloat, OwnFunction, Points, PositiveFloat, PositiveInt, ProjectName, Prose, RewardName,
    RunName, SchedulerName, Seconds, Seed, Share, Size, Spread, Text, TopologyName, VariableName,
)  # fmt: skip

SIMULATED_MODEL = "simulated-travel-judge"  # what arenarl.judges.server calls its model
PROMPT_TOKENS = 4096  # for which vLLM keeps room before a trajectory: system prompt, tools' schemas, query. Our choice
VLLM_ALONE = 0.85  # share of the GPU's memory that vLLM takes in evaluation, where nothing else is there


@dataclass
class ScratchConfig:
    """A Qwen3-architecture policy trained from scratch, for runs without a download. Not in the paper."""

    hidden_size: Size = 128  # width of the residual stream
    intermediate_size: Size = 128  # width of the gated MLP
    num_layers: Few = 2  # two is the minimum for copying from a tool's result
    num_heads: Few = 8  # query heads; with more of them copying is learnt sooner
    num_kv_heads: Few = 4  # grouped-query attention, as in Qwen3
    head_dim: Annotated[Few, Field(multiple_of=2)] = 32  # dimensions of a head
    rope_theta: Annotated[Float, Field(ge=1, le=1e9)] = 3000.0  # base of the rotary embedding: smaller than Qwen3's,
    # because sequences are short
    vocab_size: Annotated[Size, Field(ge=512)] = 1280  # maximum; byte-level BPE trained on the SFT split,
    # added tokens included
    max_positions: Annotated[PositiveInt, Field(ge=128)] = 2048  # longest sequence, in tokens


@dataclass
class PolicyConfig:
    model: Text | None = None  # hub id or local folder that SFT starts from, or smollm2-135m-instruct, which comes from
    # the package index; null builds `scratch` (paper: Qwen3-8B-Base)
    scratch: ScratchConfig = field(default_factory=ScratchConfig)
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of weights and activations
    lora_rank: Annotated[Int, Field(ge=0, le=10_000)] = 0  # 0 trains all weights (the paper);
    # above 0, LoRA of this rank on all linear layers
    gradient_checkpointing: Bool = False  # recompute activations in the backward pass: slower, far less memory


@dataclass
class LLMConfig:
    """How an LLM behind an OpenAI-compatible API is called.
    Configs never contain a key, only the name of its variable."""

    name: Literal["embedded", "llm"] = "embedded"  # embedded: this project's stand-in, which ignores the keys below.
    # llm: the model
    model: Text | None = None  # the API's name for it (paper: Qwen3-Max judges)
    base_url: Text | None = None  # of the API, including /v1; null: OpenAI's
    api_key_variable: VariableName | None = "OPENAI_API_KEY"  # the environment variable that holds the key;
    # null if none is needed
    temperature: Annotated[Float, Field(ge=0, le=2)] | None = 0.0  # null sends none, for models that reject it.
    # Our choice
    max_reply_tokens: PositiveInt = 2048  # tokens per reply, including thinking. Our choice
    token_limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # what the API calls that limit
    reply_format: Literal["json_schema", "json_object", "none"] = "json_schema"  # the output format that the API can
    # enforce; checked here anyway
    extra_body: Fields = field(default_factory=dict)  # extra request fields, passed unchanged: {enable_thinking: false}
    timeout_s: Seconds = 120.0  # an attempt that takes longer is retried
    patience_s: Seconds = 600.0  # how long a call is retried after timeouts, 429, 5xx and replies that are not
    # completions; then it has failed
    price_in: NonNegativeFloat | None = None  # per million prompt tokens, in any currency,
    # the same for all models of a run; null: unknown
    price_out: NonNegativeFloat | None = None  # per million reply tokens

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """By the prices; a price that is not known counts as 0."""
        return (tokens_in * (self.price_in or 0.0) + tokens_out * (self.price_out or 0.0)) / 1e6


@dataclass
class ResearchDataConfig:
    """How the research domain's queries are made: open-ended ones (5.1),
    and closed ones by InfoAgent's pipeline (3.1)."""

    corpus: Text | None = None  # JSONL of your own pages, which environment.search must search too; null:
    # the embedded encyclopedia
    open_share: Share = 0.5  # share of open-ended queries; the others are closed. Our choice
    plain_share: Share = 0.0  # share of closed queries that name the leaves of their trees, for small policies;
    # InfoAgent names none
    hop_weights: list[NonNegativeFloat] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    # relative frequency of closed queries over 1, 2, … entities: the budget of Algorithm 1.
    # InfoAgent gives none; our choice
    branching: list[Few] = field(default_factory=lambda: [3, 2, 1])  # Theta: children per tree node, by depth;
    # our choice
    max_clues: PositiveInt = 3  # vague facts given about one entity. Our choice
    retriever_results: PositiveInt | None = 5  # top results of BM25, p(K) of Eq. 3, that must not contain the entity;
    # null: no such test. Our choice; InfoAgent asks o3
    max_tool_calls: PositiveInt = 40  # a closed query is kept if the scripted solver needs at most this many (3.1:
    # filtering). Our choice
    rephraser: LLMConfig = field(default_factory=LLMConfig)  # f_llm of Eq. 2: an LLM that rewords closed queries;
    # embedded: unchanged


@dataclass
class DataConfig:
    folder: Text = "data/travel"  # where prepare.py writes and the scripts read
    source: list[Text] = field(default_factory=list)  # published data instead of generated data: folders, JSONL files,
    # hub data sets (owner/name, or owner/name@revision), combined. Then only `folder`, `language` and `divide` apply as
    # well, and judges must be LLMs
    divide: Bool = False  # of `source`: files not named as test or SFT data form one pool, such as DeepWriting-20K's
    # single file. From it `seed` draws sft_size trajectories for SFT and rl_size queries for RL, disjoint (Section 6.1:
    # 10k and 10k), and test_per_subtask test queries if no file is named as test data
    seed: Seed = 0  # generates queries, trajectories and baselines;
    # separate from `seed`, so that all seeds of a run share the test set
    language: Literal["zh", "en"] = "zh"  # of queries, thoughts and answers (Table 1: Chinese)
    sft_size: PositiveInt = 2600  # trajectories for the cold start (Table 1)
    rl_size: PositiveInt = 1626  # queries for RL (Table 1)
    test_per_subtask: PositiveInt = 50  # test queries per subtask, of which there are five (Section 5)
    baseline_attempts: PositiveInt = 5  # teacher trajectories per test query; the one of median quality is stored.
    # Our choice
    teacher_skill: Share = 0.1  # probability of each of the teacher's good habits in a trajectory;
    # a low value leaves RL room. Our choice
    careful_share: Share = 0.35  # share of SFT trajectories in which the teacher has all good habits instead.
    # Our choice
    baseline_skill: Share = 0.4  # the same for stored baselines: stronger, as the closed models of Section 5 are.
    # Our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # AgentGym-RL's worlds: which columns of its
    # tables to include; null: all. Our choice
    items: Text | None = None  # AgentGym-RL's worlds: your copy of its folder AgentItemId,
    # whose eval/ and train/ lists replace ours
    research: ResearchDataConfig = field(default_factory=ResearchDataConfig)  # of the research domain


@dataclass
class GeneratorConfig(LLMConfig):
    style: Text = "natural and short"  # the style of its queries; several styles make the queries diverse (Section 5,
    # stage II)


@dataclass
class BuildConfig:
    """Training data made by LLMs in the three stages of Section 5 (data/build.py).
    Roles named `embedded` are skipped."""

    seeds: Text | None = None  # seed queries: a JSONL file ({"query": …, "subtask": …, "language":
    # …}), or text with one per line
    test_seeds: Text | None = None  # the same from real scenarios: refined, they become the test queries (stage I);
    # null: drawn like the others
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # filled evenly; null: those that the seeds name
    languages: Annotated[list[Literal["zh", "en"]], Field(min_length=1)] | None = None  # filled evenly; null:
    # data.language
    generators: list[GeneratorConfig] = field(default_factory=list)  # take turns writing queries like the seeds
    queries_per_call: Few = 10  # requested from a generator at once. Our choice
    refiner: LLMConfig = field(default_factory=LLMConfig)  # improves the wording of each query,
    # and rejects those that the tools cannot serve
    extractor: LLMConfig = field(default_factory=LLMConfig)  # extracts a query's constraints,
    # if the domain has a form for them
    near_duplicate: Annotated[Float, Field(ge=0.3, le=1)] = 0.8  # share of words and word pairs in common from which
    # the later of two queries is dropped. Our choice
    teacher: LLMConfig = field(default_factory=LLMConfig)  # makes the SFT trajectories and the stored baselines with
    # the run's tools and budgets
    attempts: Few = 2  # by the teacher per SFT query; a tournament judged by judge.train picks the best. Our choice
    spare: NonNegativeFloat = 0.25  # extra SFT queries, as a share of data.sft_size, to replace what inspection drops.
    # Our choice
    inspector: LLMConfig = field(default_factory=LLMConfig)  # judges what the rules let pass,
    # on the three dimensions of stage III
    rewriter: LLMConfig = field(default_factory=LLMConfig)  # rewrites a trajectory from its first faulty turn on;
    # embedded: the teacher does
    rounds: Annotated[Int, Field(ge=0, le=100)] = 2  # of rewriting; then a trajectory is dropped. Our choice

    @property
    def llms(self) -> list[LLMConfig]:
        return [*self.generators, self.refiner, self.extractor, self.teacher, self.inspector, self.rewriter]

    @property
    def who_rewrites(self) -> LLMConfig:
        return self.rewriter if self.rewriter.name == "llm" else self.teacher


@dataclass
class WebConfig:
    """How the web is searched and its pages are fetched (B.1, InfoAgent)."""

    api: Literal["serper", "brave", "searxng"] = "serper"  # the search API: Serper (Google), Brave, or your own SearXNG
    endpoint: Text | None = None  # its address, possibly local; null: the API's default, which searxng lacks
    api_key_variable: VariableName | None = "SEARCH_API_KEY"  # the environment variable that holds the API's key
    parameters: Fields = field(default_factory=dict)  # extra request fields, passed unchanged: {gl: us, hl:
    # en} (B.1: us-en)
    timeout_s: Seconds = 20.0  # for a search or a page, including redirects, and again for its parsing. Our choice
    max_page_bytes: PositiveInt = 2_000_000  # larger pages are not read: extracting their main text would take many
    # seconds. Our choice
    concurrency: PositiveInt = 32  # concurrent searches, and concurrent fetches, shared evenly by the processes.
    # Our choice


@dataclass
class SearchConfig:
    """The research domain's `search` and `browse` (3.2, B.2, InfoAgent); null skips a stage. The paper:
    Qwen3-Embedding-0.6B, Qwen3-Reranker-0.6B, GPT-4o-mini for snippets."""

    engine: Literal["corpus", "folder", "web"] = "corpus"  # where pages come from: embedded, documents on disk,
    # a web search API
    corpus_size: Size = 3000  # entities of the embedded encyclopedia, one page each,
    # generated from environment.world_seed
    folder: Text | None = None  # for `folder`: text, Markdown, HTML and JSONL files, at any depth
    indexes: Text = "runs/search"  # where folder indexes are kept, for all runs and processes
    web: WebConfig = field(default_factory=WebConfig)
    results: PositiveInt = 5  # pages shown by a search
    search_chunk_tokens: PositiveInt = 128  # size of the chunks that a search looks at;
    # a token is a word, or a Chinese character
    browse_chunk_tokens: PositiveInt | None = 2048  # size of the chunk that browsing shows; null shows the page
    bm25_chunks: PositiveInt | None = 40  # best chunks of a page for the query; null: all
    snapshot_chunks: PositiveInt | None = 3  # best chunks for the web search's snippet of the page (Eq. 5)
    embedder: Text | None = None  # an embedding model: all-minilm-l6-v2 (from the package index), a hub id or a local
    # folder; needs sentence-transformers
    embedded_chunks: PositiveInt = 8  # chunks that the embedder keeps
    reranker: Text | None = None  # the same for a cross-encoder
    reranked_chunks: PositiveInt = 3  # chunks kept for a snippet by the reranker (or by BM25 without one);
    # browsing shows the first
    device: DeviceName = "cpu"  # where embedder and reranker run; the GPU is the policy's. Our choice
    snippet: LLMConfig = field(default_factory=LLMConfig)  # writes snippets; embedded: whole sentences from the page
    snippet_words: PositiveInt = 60  # maximum per snippet
    summary: LLMConfig = field(default_factory=LLMConfig)  # shortens what browsing shows; embedded: its first sentences
    summary_above_chars: PositiveInt | None = 2500  # longer texts are shortened to this (Appendix C, ArenaRL); null:
    # never (InfoAgent)
    cache: Text | None = "runs/search/cache.sqlite"  # web and model results, for all runs and processes (B.3);
    # null keeps them in memory

    @property
    def llms(self) -> dict[str, LLMConfig]:
        return {"snippet": self.snippet, "summary": self.summary}


@dataclass
class RenamedToolConfig:
    """A tool under another name for the policy (the key in `rename`), with other arguments,
    or made of several of the server's calls."""

    tool: Text | None = None  # the server's name for it
    arguments: dict[Text, Text] = field(default_factory=dict)  # the policy's name for an argument → the server's;
    # others are unchanged
    function: OwnFunction | None = None  # instead of `tool`: package.module:function,
    # whose first argument `call` makes the server's calls
    like: EnvironmentName | None = None  # one of our environments, whose tool of this name supplies description and
    # arguments; null: the server's tool or the function's docstring does


@dataclass
class MCPServerConfig:
    """A source of tools for `environment.name: mcp`: `command`, `url` or `world`.
    Our choices; the paper has only the services."""

    command: list[Line] | None = None  # starts a server over stdin/stdout: [uvx, amap-mcp-server]
    url: Text | None = None  # of a streamable HTTP server: http://127.0.0.1:8000/mcp
    world: EnvironmentName | None = None  # our own tools, in this process, without a server: travel, research
    allow: list[Text] | None = None  # the server's tools that the policy gets under their own names; null: all; []:
    # only those in `rename`
    rename: dict[Text, RenamedToolConfig] = field(default_factory=dict)  # the policy's name for a tool → what answers;
    # it then has no other name
    session: Literal["shared", "trajectory"] = "shared"  # shared: one for all trajectories, for read-only servers;
    # trajectory: one each, for stateful servers; the state is lost with the session
    cache: Bool = True  # shared sessions: keep results in judge.store, so that a call is made once for all runs;
    # errors are not kept
    timeout_s: Seconds = 30.0  # a longer call is an error that the policy sees;
    # a server that then does not even list its tools is dead
    start_timeout_s: Seconds = 120.0  # until a server has started and responded; uvx and npx may have to fetch it first
    concurrency: Few = 16  # concurrent calls per process
    max_chars: PositiveInt = 8000  # per result; longer ones are cut
    env: dict[VariableName, Line] = field(default_factory=dict)  # of `command`: environment variables and values,
    # besides PATH, HOME and the like
    variables: list[VariableName] = field(default_factory=list)  # of `command`: this process's environment variables to
    # pass on: [AMAP_MAPS_API_KEY]
    api_key_variable: VariableName | None = None  # of `url`: the environment variable that holds the server's key
    api_key_parameter: Name | None = None  # of `url`: the parameter that carries the key; null: a bearer token

    @property
    def says(self) -> str:
        """What names it in a message."""
        return self.url or (" ".join(self.command) if self.command else f"the world {self.world}")


@dataclass
class EnvironmentConfig:
    name: EnvironmentName = "travel"  # the tools: travel, research, a world of AgentGym-RL, MCP servers (mcp),
    # none (query, thinking, text), or your own class as package.module:Class
    domain: DomainName = "travel"  # of the queries: travel, research, writing, textcraft, babyai, your own as
    # package.module:Class, or a name with only a rubric, configs/rubrics/<domain>_<language>.yaml, for LLM judges and
    # your own (arenarl/domains/domain.py)
    world_seed: Seed = 0  # generates points of interest and timetables
    results: Literal["full", "compact"] = "full"  # JSON with all fields, or one line per record for a tiny policy
    tickets: LLMConfig = field(default_factory=LLMConfig)
    # invents flights and trains in rollouts: the embedded world, or an LLM as in the paper (Appendix C),
    # for runs with LLM judges
    search: SearchConfig = field(default_factory=SearchConfig)  # of `research`
    server: Text | None = None  # for an OpenEnv client class: the address of its server
    mcp: list[MCPServerConfig] = field(default_factory=list)  # for `mcp`: the servers whose tools the policy gets
    # (docs/domains.md)
    schemas_in_prompt: Bool = True  # put the tools' JSON schemas in the prompt;
    # a tiny policy learns them from SFT instead
    actions: ActionForm = "tool_calls"  # how a policy acts: Qwen3's tool calls, or text, `Thought: … Action: …`
    # (AgentGym), for an environment with one tool that takes one text; then without schemas in the prompt
    instances: PositiveInt | None = None  # of a stateful environment: concurrent instances per process, one per
    # trajectory; other trajectories wait; null: as many as trajectories generated at once. Our choice

    @property
    def has_tools(self) -> bool:
        return self.name != "none"

    @property
    def llms(self) -> dict[str, LLMConfig]:
        """All that its tools may ask, by key."""
        return {"tickets": self.tickets} | {f"search.{name}": llm for name, llm in self.search.llms.items()}

    @property
    def made_of(self) -> list[str]:
        """By name or import path, the environments and functions whose code its tools are."""
        functions = [renamed.function for server in self.mcp for renamed in server.rename.values() if renamed.function]
        return [self.name, *(server.world for server in self.mcp if server.world), *functions]


@dataclass
class RolloutConfig:
    group_size: Annotated[Few, Field(ge=2)] = 16  # N: trajectories per query, including the anchor (Appendix A)
    temperature: Annotated[Float, Field(ge=0.01, le=100)] = 0.8  # for all but the anchor (4.2)
    anchor: Bool = True  # row 0 of a training group is decoded greedily (4.2)
    max_turns: PositiveInt = 12  # assistant turns per trajectory. Not in the paper; our choice
    turn_schedule: list[PositiveInt] | None = None  # RL's turn budgets by stage: h_1 < h_2 < … (3.3, AgentGym-RL:
    # ScalingInter-RL); null: max_turns
    turns_every: PositiveInt | None = None  # optimizer steps per stage (Delta, 3.3, AgentGym-RL);
    # null divides rl.steps evenly
    max_tokens: PositiveInt = 16384  # tokens per trajectory after its prompt, including observations. Our choice
    max_turn_tokens: PositiveInt = 4096  # tokens per assistant turn. Our choice
    system_prompt: Prose | None = None  # system prompt of locally run policies, the same in SFT, RL and evaluation: a
    # text, a .txt or .md file, or none. null: what the policy that RL starts from was told when a stage of this project
    # trained it (rl.init, rl.init_run or this run's SFT); for another model (policy.model, rl.init) the text of
    # configs/prompts/policy_<data.language>; none for a policy from scratch. Not in the paper; our choice
    force_answer: Bool = False  # prefill an answer in the last turn that fits the budgets (C.2, InfoAgent:
    # in evaluation)
    batch_size: PositiveInt = 256  # trajectories generated at once per process. Our choice
    backend: Literal["transformers", "vllm", "vllm_server"] = "transformers"  # generation backend; the paper does not
    # say. Our choice vllm: an engine in every training process, on the same GPU. vllm_server:
    # `python -m arenarl.rollout.vllm_server`, on separate GPUs.
    vllm_memory: Annotated[Share, Field(gt=0)] = 0.3  # `vllm`: share of the GPU's memory for its weights and cache in
    # training. Our choice
    vllm_sleep: Bool = False  # `vllm`: release its memory between rollouts in training; needs GPUs. Our choice
    vllm_tensor_parallel: PositiveInt = 1  # `vllm`: number of processes, adjacent in rank, whose GPUs share an engine.
    # Our choice
    server_url: Text = "http://127.0.0.1:8000"  # address of `vllm_server`
    server_sync: Literal["disk", "nccl"] = "disk"  # `vllm_server`: how each step's weights get there;
    # nccl needs GPUs on both sides. Our choice
    server_weights: Text | None = None  # `server_sync: disk`: the folder for the weights, on a disk that the server
    # sees too, such as /dev/shm/policy on one machine; null: the run's own folder
    parity_steps: PositiveInt = 20  # optimizer steps between checks that vLLM agrees with the trainer;
    # the first is before step 1. Our choice
    parity_bound: PositiveFloat = 0.05  # nats: a larger mean log-probability difference on vLLM's greedy tokens stops
    # the run. Our choice

    @property
    def longest(self) -> int:
        """Tokens of a whole trajectory, its prompt included, for which vLLM keeps room."""
        return PROMPT_TOKENS + self.max_tokens

    @property
    def system_prompt_file(self) -> Path | None:
        """The file of it, if the key names one."""
        said = self.system_prompt or ""
        return Path(said) if "\n" not in said and said.endswith((".txt", ".md")) else None


@dataclass
class JudgeConfig(LLMConfig):
    name: JudgeName = "embedded"  # embedded: the world's truth plus the noise below. llm: the model.
    # package.module:Class: your own judge
    process_aware: Bool = True  # false: the judge sees only the answers (3.3 argues for the whole trajectory)
    show_tool_results: Bool = True  # false: the judge sees thoughts, calls and answer, as 3.3 names them, and believes
    # the facts that it cannot check
    max_result_chars: PositiveInt = 2000  # the middle of a longer tool result is cut out for an LLM. Our choice
    max_text_chars: PositiveInt = 20000  # the same for thoughts, calls and answers. Our choice
    query_rubrics: Text | None = None  # JSONL of rubrics written for each query (Appendix A, Tournament-GRPO); null:
    # the domain's rubric
    noise: Literal["none", "simulated"] = "simulated"  # `none`: the truth itself
    sigma_independent: Spread = 1.0  # points of 10, drawn independently for every dimension score of every call
    sigma_call: Spread = 1.0  # drawn once per call and shared by the trajectories it shows: scoring drift
    sigma_sticky: Spread = 0.3  # drawn once per trajectory, so that repeated calls do not average it out: taste
    position_bias: Points = 0.3  # added to the trajectory shown first, subtracted from the second
    length_bias: Points = 0.3  # points per natural-log unit of answer length above the typical one
    typical_chars: PositiveInt = 90  # the typical answer's length; scores are clipped to 0 to 10,
    # so this decides where the bias has an effect
    rounding: Annotated[Float, Field(ge=1e-6, le=100)] = 0.5  # scores are multiples of this many points
    listwise_noise: Spread = 1.0  # for a call that scores a whole group (reward.name=ruler): multiplies
    # sigma_independent, sigma_call and position_bias
    flip_rate: Annotated[Float, Field(ge=0, le=0.5)] | None = None  # checklist items (reward.name=rubric_checklist):
    # the share of wrong answers; null: the share that makes an answer as reliable as a score under the noise above
    # (arenarl/judges/embedded.py)

    @property
    def is_simulated(self) -> bool:
        """Whether verdicts come from the embedded world, here or through `arenarl.judges.server`."""
        return self.name == "embedded" or self.model == SIMULATED_MODEL


@dataclass
class JudgesConfig:
    train: JudgeConfig = field(default_factory=JudgeConfig)  # gives the reward (paper: Qwen3-Max)
    eval: Annotated[list[JudgeConfig], Field(min_length=1)] = field(default_factory=lambda: [JudgeConfig()])
    # the win rate is their mean (5.3: two judges)
    watch: JudgeConfig = field(default_factory=JudgeConfig)  # also scores a share of RL's groups, without influence on
    # rewards, to show whether the policy improves or learns to please its judge (docs/judges.md).
    # Not in the paper; our choice
    watch_share: Share = 0.0  # share of groups, drawn by `seed`, that it scores; 0: no watching judge
    verifier: LLMConfig = field(default_factory=LLMConfig)  # decides whether an answer is the known one: embedded:
    # exact match up to case, spaces and articles; llm asks the model (C.2, InfoAgent: o4-mini)

    # What follows bounds the LLM calls of a run, over all its judges and processes, and changes no verdict.
    # Our choices.
    concurrency: PositiveInt = 64  # concurrent calls, with those that wait for a rate limit,
    # shared evenly by RL's processes
    store: Text = "runs/replies.sqlite"  # keeps every reply, so none is paid for twice; runs can share it
    store_only: Bool = False  # take replies only from the store: no key, no calls; a missing reply stops the run
    max_calls: PositiveInt | None = None  # paid calls per run, over all its stages and restarts;
    # then it saves a checkpoint and stops
    max_cost: PositiveFloat | None = None  # the same as a cost, by price_in and price_out
    max_failure_share: Share = 0.2  # of the last 200 verdicts; above it the run saves a checkpoint and stops

    @property
    def watching(self) -> dict[str, JudgeConfig]:
        """`watch` by its key, if it has a share of the groups."""
        return {"judge.watch": self.watch} if self.watch_share else {}

    @property
    def evaluating(self) -> dict[str, JudgeConfig]:
        """`eval` by their keys."""
        return {f"judge.eval.{index}": judge for index, judge in enumerate(self.eval)}


@dataclass
class TournamentConfig:
    topology: TopologyName = "seeded_single_elimination"  # Section 4, Table 2; single_elimination has random seeds;
    # balanced, not in the paper, spreads matches evenly; elo and random_reference are from rival methods
    # (docs/methods.md); or your own class derived from Topology (docs/tournament.md)
    placement: Literal["standard", "algorithm1"] = "standard"  # of seeds in the bracket; algorithm1 takes the paper
    # literally
    bidirectional: Bool = True  # judge each pair in both orders (Eq. 3); false: once, so position bias remains
    accumulate: Literal["mean", "sum"] = "mean"  # order within a tier: 4.3's text averages, Algorithm 1 sums
    matches: Text = "2n-2"  # for balanced: a number, or a multiple of the number of entrants n.
    # Not in the paper; our choice
    elo_matches: PositiveInt | None = None  # for elo and reward.name=elo: number of matches; null: ⌈N log₂ N⌉ (TournO).
    # At most one per pair
    elo_estimate: Literal["sequential", "bradley_terry"] = "sequential"  # for elo: ratings updated after each match
    # (TournO), or those that best explain all outcomes, regardless of order. Our choice
    ranking: Literal["bracket", "scores"] | None = None  # the topology's rules (Section 4), or a mixed-effects model of
    # all scores (not in the paper; our choice); null: bracket, but scores for balanced, which has no rules of its own
    timeout_s: Seconds | None = None  # a longer judge call has failed, waiting for a place in judge.concurrency
    # included; null: no limit. Our choice


@dataclass
class GroupStageConfig:
    """The tournament of `reward.name: tournament_grpo`. The defaults are the best row of Table 2, Tournament-GRPO."""

    repeats: Few = 8  # M: tournaments whose points are summed
    group: Annotated[Few, Field(ge=2)] = 4  # G: maximum trajectories per call
    winners: Few = 2  # K_win: how many of them advance
    final: Few = 2  # K_final: a tournament ends when at most this many are left
    weights: list[PositiveFloat] = field(default_factory=lambda: [1.0])  # omega_t: points per win, by round; the last
    # holds from there on (4.1: 1)


@dataclass
class RewardConfig:
    name: RewardName = "tournament"
    # how a trajectory is rewarded; docs/methods.md, "Rewards", explains each, with its source. Or your own function:
    # (query, trajectories, judge) -> one reward each
    entity_recall: Annotated[Float, Field(ge=0, lt=1)] = 0.0  # lambda of Eq. 8, InfoAgent: reward of a wrong answer
    # that found all entities of the known answer's tree; below 1, so that it stays below the right one's
    tournament_if_equal: Bool = False  # for environment and correctness: rank a group whose rewards are all equal by
    # the tournament instead (Reasoning Arena). Our choice
    alpha: NonNegativeFloat = 3.0  # for mixture: r_point + exp(-alpha mean(r_point)) r_pair: the better the group, the
    # less pairs count. TournO's
    mixture_pairs: Literal["win_rate", "elo"] = "win_rate"  # for mixture, r_pair: share of the others beaten, or Elo
    # ratings as in elo (TournO: both)
    repeats: Few = 1  # for pointwise_answer and pointwise_trajectory: calls per trajectory, averaged; a control with as
    # many calls as a tournament. Not in the papers; our choice


@dataclass
class SFTConfig:
    epochs: Annotated[Float, Field(ge=0.001, le=10_000)] = 3.0  # Appendix A
    learning_rate: LearningRate = 2e-5  # Appendix A
    lr_scheduler: SchedulerName = "cosine"  # learning-rate schedule, by its name in transformers. Our choice
    warmup_ratio: Annotated[Float, Field(ge=0, lt=1)] = 0.03  # share of all steps. Our choice
    weight_decay: Share = 0.0  # our choice
    adam_beta2: Annotated[Float, Field(ge=0, lt=1)] = 0.999  # AdamW's decay for squared gradients.
    # Not in the paper; AdamW's default
    batch_size: PositiveInt = 1  # trajectories per process and step (Appendix A: 1 per GPU)
    gradient_accumulation: PositiveInt = 1  # batches summed before an update
    max_length: PositiveInt = 16384  # tokens; longer trajectories are cut, counted and reported. Our choice
    save_steps: PositiveInt = 200  # optimizer steps between checkpoints
    stop_at_valid: Share | None = None  # share of valid trajectories at which SFT stops, measured every `save_steps`
    # steps; null: train to the end
    deepspeed: Text | None = "ds_config.json"  # ZeRO-3 (Appendix A); null trains without DeepSpeed


@dataclass
class DifficultyConfig:
    """Which queries with a known answer are worth training on, as measured by `python -m arenarl.training.difficulty`
    (4.1, InfoAgent)."""

    filter: Bool = False  # train only on queries that the SFT policy sometimes answers correctly;
    # those without a known answer stay
    samples: Few = 4  # sampled trajectories per query
    low: Share = 0.25  # minimum share of correct ones
    high: Annotated[Share, Field(gt=0)] = 0.75  # maximum share


@dataclass
class RLConfig:
    init: Text | None = None  # folder or hub id that RL starts from; null: the SFT policy of `init_run`
    init_run: RunName | None = None  # run whose SFT policy with the same seed RL starts from; null: this run
    steps: PositiveInt = 200  # optimizer steps. Our choice (Fig. 4c shows 160)
    groups: PositiveInt = 8  # K: queries rolled out per step, over all processes (Appendix A)
    micro_batch_size: PositiveInt = 1  # trajectories per forward and backward pass of a process
    learning_rate: LearningRate = 1e-6  # Appendix A
    lr_scheduler: SchedulerName = "constant"  # learning-rate schedule, by its name in transformers. Our choice

    method: Literal["online", "dpo", "agentevol"] = "online"  # online: GRPO and its relatives, set by the keys below.
    # dpo, agentevol: rounds of rollouts, each followed by training on pairs, or on the best (3.2.2, AgentGym-RL;
    # arenarl/training/offline.py)
    rounds: PositiveInt = 1  # for dpo and agentevol: together they roll out as much as `steps` of online RL.
    # AgentGym-RL gives none; our choice
    batch_size: PositiveInt = 16  # for dpo and agentevol: pairs or trajectories per optimizer step, over all processes.
    # Our choice
    dpo_beta: PositiveFloat = 0.1  # for dpo: strength of the penalty for leaving the reference policy. TRL's choice
    keep_from: Annotated[Float, Field(ge=-1e6, le=1e6)] = 1.0  # for agentevol: minimum reward of a trajectory to train
    # on. AgentGym-RL keeps successes, 1; the best of a ranked group are always kept

    # What makes the method, with `reward.name`. configs/methods/ spells each one out.
    advantage: Literal["group_std", "center", "leave_one_out", "batch_std", "decoupled", "gae", "none"] = "group_std"
    # in its group. group_std: (reward - mean) / standard deviation (Eq. 7; GRPO, GSPO, DAPO). center: reward - mean
    # (Dr.GRPO). leave_one_out: reward - mean of the others (RLOO). batch_std: reward - mean, divided by its standard
    # deviation over the step (REINFORCE++ with baseline). decoupled: reward and validity, each as in group_std, summed
    # and standardised over the step (GDPO). gae: per token, with a critic (PPO; arenarl/training/methods/ppo.py). none:
    # the reward itself (BRPO)
    advantage_ddof: Annotated[Int, Field(ge=0, le=1)] = 1  # for group_std: the variance is divided by N - ddof; the
    # paper does not say. TRL's choice
    advantage_epsilon: NonNegativeFloat = 1.0e-4  # for group_std: added to the standard deviation in Eq. 7; the paper
    # gives no value. TRL's choice
    discount: Annotated[Float, Field(ge=0, le=1)] = 1.0  # for gae: discount per token. AgentGym-RL's
    gae_lambda: Annotated[Float, Field(ge=0, le=1)] = 1.0  # for gae: 1 relies on the reward,
    # 0 on the critic's next value. AgentGym-RL's
    critic_learning_rate: LearningRate = 1e-5  # for gae, constant. AgentGym-RL's
    importance_sampling_level: Literal["token", "sequence"] = "token"  # Eq. 8 is written per trajectory; sequence: GSPO
    loss_type: Literal["grpo", "dr_grpo", "dapo"] = "grpo"  # token losses are averaged per trajectory and then over
    # trajectories (grpo, as in Eq. 8), summed and divided by the rollout's tokens an update (dapo), or summed and
    # divided by a constant, rollout.max_tokens (dr_grpo)
    epsilon: Annotated[Float, Field(gt=0, lt=1)] = 0.2  # clip range of Eq. 8; the paper gives no value. Our choice
    epsilon_high: Annotated[Float, Field(gt=0, le=100)] | None = None  # upper clip range, if different (DAPO:
    # clip-higher)
    updates_per_rollout: PositiveInt = 1  # optimizer steps per batch of rollouts; at 1 every ratio of Eq. 8 is 1, so
    # clip range and level have no effect. The paper does not say; our choice
    beta: NonNegativeFloat = 0.001  # weight of the KL term in Eq. 8, 0: none; the paper gives no value. Our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # train only on these; null: all but M-Day,
    # which SFT does not see either
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    max_grad_norm: PositiveFloat = 1.0  # gradient clipping norm. Our choice
    stop_without_valid: PositiveInt | None = 10  # consecutive steps without a valid trajectory, or without the world's
    # first reward if the world gives rewards, after which RL saves a checkpoint and stops; null: never
    save_steps: PositiveInt = 20  # optimizer steps between checkpoints
    eval_steps: Annotated[Int, Field(ge=0, le=1_000_000_000)] = 20  # optimizer steps between evaluations on a few
    # held-out queries (Fig. 4c's curve); 0: none
    eval_queries: PositiveInt = 50  # number of these queries, spread over the subtasks
    deepspeed: Text | None = None  # a DeepSpeed JSON: ZeRO-3 shards parameters, gradients and optimizer over the
    # processes, which full fine-tuning of Qwen3-8B needs; null: each process holds everything. The paper mentions
    # ZeRO-3 for SFT only; our choice

    @property
    def rollouts(self) -> int:
        """How many times `groups` queries are rolled out."""
        return math.ceil(self.steps / self.updates_per_rollout)

    @property
    def curve_points(self) -> int:
        """How many times the curve is evaluated, before the first step included."""
        return self.steps // self.eval_steps + 1 if self.eval_steps else 0


@dataclass
class EvaluateConfig:
    checkpoints: dict[Name, Text] = field(default_factory=dict)  # name -> folder or hub id;
    # if empty here and in `api`: this run's sft and rl
    api: dict[str, LLMConfig] = field(default_factory=dict)  # name -> a closed model to evaluate beside them with the
    # same tools and budgets (Table 3's first rows): {gpt-4o: {base: ../policies/gpt_4o.yaml}}. Turn budgets and
    # temperature come from `rollout`; max_reply_tokens and reply_format apply only to judges, and temperature only if
    # null, which sends none
    decodings: Annotated[list[Literal["sampled", "greedy"]], Field(min_length=1)] = field(  # at rollout.temperature,
        # and at 0; also for RL's curve
        default_factory=lambda: ["sampled", "greedy"]
    )
    samples: Few = 1  # sampled trajectories per query, all of which count; above 1, pass@k too (Fig. 9, AgentGym-RL)
    max_turns: list[PositiveInt] | None = None  # test-time turn budgets, each with its metrics (Fig. 8, AgentGym-RL);
    # the table uses the largest; null: rollout.max_turns. Not available where the world ends trajectories
    bootstrap: Annotated[Size, Field(ge=20)] = 2000  # resamples for the 95 % intervals
    bracket: Bool = False  # after the matches against the baseline, finish each query's tournament for the report; at
    # most 2n-2 calls per query with n trajectories, by the first of judge.eval; changes no metric. Not in the paper;
    # our choice

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """(decoding, number) of each trajectory of a query; a greedy one is the same however often it is tried."""
        return [
            (decoding, number)
            for decoding in self.decodings
            for number in range(self.samples if decoding == "sampled" else 1)
        ]


@dataclass
class WandbConfig:
    project: ProjectName = "arenarl"  # the W&B project
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"  # auto: online with a login, else offline;
    # never asks


@dataclass
class Config:
    name: RunName = "run"  # of the folders runs/<name> and results/<name>
    results: Text = "results"  # the folder of results/<name>
    seed: Seed = 0  # all randomness in training derives from it; seeds other than 0 get their own folders
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

    @property
    def evaluated(self) -> dict[str, "str | LLMConfig"]:
        """What evaluate.py evaluates: name -> folder or hub id, or a closed model."""
        return {**self.evaluate.checkpoints, **self.evaluate.api} or {
            "sft": self.sft_policy,
            "rl": str(self.run_dir / "rl"),
        }

    def llms_of(self, stage: str) -> list[LLMConfig]:
        """Whom a stage may ask: judges, verifier, simulated tools, policies behind an API.
        Those named `embedded` are no LLMs."""
        judge = self.judge
        judges = {
            "rl": [judge.train, *judge.watching.values(), *judge.eval, judge.verifier],
            "evaluate": [*judge.eval, judge.verifier],
            "difficulty": [judge.verifier],
            "benchmarks": judge.eval[:1],
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
    def sft_policy(self) -> str:
        """What RL starts from and is compared with."""
        return self.rl.init or str(Path("runs") / self._with_seed(self.rl.init_run or self.name) / "sft")

    @property
    def pass_rates(self) -> Path:
        """Where `arenarl.training.difficulty` leaves those of the policy that RL starts from:
        beside it, for all runs that do."""
        folder = self.run_dir if self.rl.init else Path(self.sft_policy).parent
        return folder / "difficulty" / "pass_rates.jsonl"

    @property
    def turns(self) -> TurnSchedule:
        """Optimizer step → turns that a training trajectory may take."""
        return turn_schedule(
            self.rollout.turn_schedule, self.rollout.turns_every, self.rollout.max_turns, self.rl.steps
        )

    @property
    def temperatures(self) -> dict[str, float]:
        """Of each decoding that is evaluated, in RL's curve and at the end."""
        known = {"sampled": self.rollout.temperature, "greedy": 0.0}
        return {decoding: known[decoding] for decoding in self.evaluate.decodings}

    @property
    def curve_cases(self) -> int:
        """Trajectories that RL's curve takes, all points together."""
        return self.rl.curve_points * self.rl.eval_queries * len(self.evaluate.decodings)

    @property
    def test_turns(self) -> int:
        """Turns that an evaluated trajectory may take."""
        return self.evaluate.max_turns[-1] if self.evaluate.max_turns else self.rollout.max_turns

    def _with_seed(self, name: str) -> str:
        return name if self.seed == 0 else f"{name}-seed{self.seed}"

    @property
    def results_dir(self) -> Path:
        return Path(self.results) / self.run_name
