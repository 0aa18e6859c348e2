"""Every key of a run's YAML: its type and range, its default, what it means and its source in the paper.

`load` reads a YAML into a `Config` and refuses what is outside a key's type and range (`value_types`); rules between keys are in `checks`.
Nothing here imports torch: a typo costs milliseconds, not a model load.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from arenarl.config.turn_schedule import TurnSchedule, turn_schedule
from arenarl.config.value_types import (
    ActionForm,
    Bool,
    DeviceName,
    DomainName,
    EnvironmentName,
    Few,
    Fields,
    Float,
    Int,
    JudgeName,
    LearningRate,
    Line,
    Name,
    NonNegativeFloat,
    OwnFunction,
    Points,
    PositiveFloat,
    PositiveInt,
    ProjectName,
    Prose,
    RewardName,
    RunName,
    SchedulerName,
    Seconds,
    Seed,
    Share,
    Size,
    Spread,
    Text,
    TopologyName,
    VariableName,
)

SIMULATED_MODEL = "simulated-travel-judge"  # what arenarl.judges.server calls its model
PROMPT_TOKENS = 4096  # for which vLLM keeps room before a trajectory: system prompt, tools' schemas, query. Our choice
VLLM_ALONE = 0.85  # share of the GPU's memory that vLLM takes in evaluation, where nothing else is there


@dataclass
class ScratchConfig:
    """A Qwen3-architecture policy trained from nothing, for runs without a download. Not in the paper."""

    hidden_size: Size = 128  # width of the residual stream
    intermediate_size: Size = 128  # width of the gated MLP
    num_layers: Few = 2  # two are the least that can copy from a tool's result
    num_heads: Few = 8  # query heads; more of them learn to copy sooner
    num_kv_heads: Few = 4  # grouped-query attention, as in Qwen3
    head_dim: Annotated[Few, Field(multiple_of=2)] = 32  # dimensions of a head
    rope_theta: Annotated[Float, Field(ge=1, le=1e9)] = 3000.0  # base of the rotary embedding: smaller than Qwen3's, because sequences are short
    vocab_size: Annotated[Size, Field(ge=512)] = 1280  # at most; byte-level BPE trained on the SFT split, added tokens included
    max_positions: Annotated[PositiveInt, Field(ge=128)] = 2048  # longest sequence, in tokens


@dataclass
class PolicyConfig:
    model: Text | None = None  # hub id or local folder that SFT starts from, or smollm2-135m-instruct, which comes from the package index; null
    # builds `scratch` (paper: Qwen3-8B-Base)
    scratch: ScratchConfig = field(default_factory=ScratchConfig)
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of weights and activations
    lora_rank: Annotated[Int, Field(ge=0, le=10_000)] = 0  # 0 trains all weights (the paper); above 0, LoRA of this rank on all linear layers
    gradient_checkpointing: Bool = False  # recompute activations in the backward pass: slower, far less memory


@dataclass
class LLMConfig:
    """How an LLM behind an OpenAI-compatible API is called. A key never stands in a config, only the name of its variable."""

    name: Literal["embedded", "llm"] = "embedded"  # embedded: this project's own stand-in, and nothing below counts. llm: the model
    model: Text | None = None  # as the API names it (paper: Qwen3-Max judges)
    base_url: Text | None = None  # of the API, /v1 included; null is OpenAI's
    api_key_variable: VariableName | None = "OPENAI_API_KEY"  # the environment variable that holds the key; null where none is wanted
    temperature: Annotated[Float, Field(ge=0, le=2)] | None = 0.0  # null sends none, for models that refuse it. Our choice
    max_reply_tokens: PositiveInt = 2048  # tokens of a reply, thinking included. Our choice
    token_limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # what the API calls that limit
    reply_format: Literal["json_schema", "json_object", "none"] = "json_schema"  # what it can be made to reply; checked here anyway
    extra_body: Fields = field(default_factory=dict)  # further fields of a request, as they are: {enable_thinking: false}
    timeout_s: Seconds = 120.0  # an attempt that takes longer is made again
    patience_s: Seconds = 600.0  # for so long a call is tried again on timeouts, 429, 5xx and what is no completion; then it has failed
    price_in: NonNegativeFloat | None = None  # of a million prompt tokens, in any currency, the same for all models of a run; null: not known
    price_out: NonNegativeFloat | None = None  # of a million reply tokens

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """By the prices; a price that is not known counts as 0."""
        return (tokens_in * (self.price_in or 0.0) + tokens_out * (self.price_out or 0.0)) / 1e6


@dataclass
class ResearchDataConfig:
    """How the research domain's queries are made: open-ended ones (5.1), and closed ones by InfoAgent's pipeline (3.1)."""

    corpus: Text | None = None  # JSONL of your own pages, which environment.search must search too; null is the embedded encyclopedia
    open_share: Share = 0.5  # share of open-ended queries; the others are closed. Our choice
    plain_share: Share = 0.0  # share of closed queries that name the leaves of their trees, for small policies; InfoAgent names none
    hop_weights: list[NonNegativeFloat] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    # of closed queries over 1, 2, … entities, in proportion: the budget of Algorithm 1. InfoAgent gives none; our choice
    branching: list[Few] = field(default_factory=lambda: [3, 2, 1])  # Theta: children of a tree's node, by depth; our choice
    max_clues: PositiveInt = 3  # vague facts told of one entity. Our choice
    retriever_results: PositiveInt | None = 5  # pages by which BM25, p(K) of Eq. 3, tries to find an entity; null: there is no BM25 to hide
    # it from. Our choice; InfoAgent asks o3
    max_tool_calls: PositiveInt = 40  # a closed query is kept if the scripted solver needs at most so many (3.1: filtering). Our choice
    rephraser: LLMConfig = field(default_factory=LLMConfig)  # f_llm of Eq. 2: an LLM that words closed queries; embedded leaves them


@dataclass
class DataConfig:
    folder: Text = "data/travel"  # where prepare.py writes and the scripts read
    source: list[Text] = field(default_factory=list)  # published data instead of generated: folders, JSONL files, data sets of the hub
    # (owner/name, or owner/name@revision), read together. Then only `folder`, `language` and `divide` count beside it, and judges must be LLMs
    divide: Bool = False  # of `source`: files that are called neither after tests nor after SFT are one pool, such as DeepWriting-20K's one file.
    # From it `seed` draws sft_size trajectories for SFT and rl_size queries for RL, none in both (Section 6.1: 10k and 10k), and test_per_subtask
    # queries for tests where no file is called after them
    seed: Seed = 0  # makes queries, trajectories and baselines; apart from `seed`, so that all seeds of a run share the test set
    language: Literal["zh", "en"] = "zh"  # of queries, thoughts and answers (Table 1: Chinese)
    sft_size: PositiveInt = 2600  # trajectories for the cold start (Table 1)
    rl_size: PositiveInt = 1626  # queries for RL (Table 1)
    test_per_subtask: PositiveInt = 50  # test queries for each of the five subtasks (Section 5)
    baseline_attempts: PositiveInt = 5  # teacher trajectories a test query; the one of median quality is stored. Our choice
    teacher_skill: Share = 0.1  # chance that the teacher has each good habit in a trajectory; low leaves RL room. Our choice
    careful_share: Share = 0.35  # share of SFT trajectories in which the teacher has all good habits instead. Our choice
    baseline_skill: Share = 0.4  # the same for stored baselines: stronger, as the closed models of Section 5 are. Our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # of AgentGym-RL's worlds: the columns of its table that the data has;
    # null: all. Our choice
    items: Text | None = None  # of AgentGym-RL's worlds: a folder, your copy of its AgentItemId, whose eval/ and train/ lists replace our own
    research: ResearchDataConfig = field(default_factory=ResearchDataConfig)  # of the research domain


@dataclass
class GeneratorConfig(LLMConfig):
    style: Text = "natural and short"  # how its queries are to sound: several styles make the queries diverse (Section 5, stage II)


@dataclass
class BuildConfig:
    """Training data made by LLMs in the three stages of Section 5 (data/build.py). Those named `embedded` are left out."""

    seeds: Text | None = None  # seed queries: a JSONL file ({"query": …, "subtask": …, "language": …}), or text with one a line
    test_seeds: Text | None = None  # the same of real scenarios: they are refined and become the test queries (stage I); null: drawn like the others
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # to be filled evenly; null: those that the seeds name
    languages: Annotated[list[Literal["zh", "en"]], Field(min_length=1)] | None = None  # to be filled evenly; null: data.language
    generators: list[GeneratorConfig] = field(default_factory=list)  # write queries in the manner of the seeds, in turn
    queries_per_call: Few = 10  # that a generator is asked for at once. Our choice
    refiner: LLMConfig = field(default_factory=LLMConfig)  # words each query better, and refuses what the tools cannot serve
    extractor: LLMConfig = field(default_factory=LLMConfig)  # reads a query's constraints, where the domain has a form for them
    near_duplicate: Annotated[Float, Field(ge=0.3, le=1)] = 0.8  # share of words and pairs of them that two queries share, from which on
    # the later is left out. Our choice
    teacher: LLMConfig = field(default_factory=LLMConfig)  # makes the SFT trajectories and the stored baselines with the run's tools and budgets
    attempts: Few = 2  # of the teacher at an SFT query; a tournament of judge.train takes the best. Our choice
    spare: NonNegativeFloat = 0.25  # SFT queries beyond data.sft_size, as a share of it, for trajectories that inspection drops. Our choice
    inspector: LLMConfig = field(default_factory=LLMConfig)  # judges what the rules let pass, by the three dimensions of stage III
    rewriter: LLMConfig = field(default_factory=LLMConfig)  # writes a trajectory anew from its first faulty turn on; embedded: the teacher does
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

    api: Literal["serper", "brave", "searxng"] = "serper"  # the search API: Serper (Google), Brave, or a SearXNG of one's own
    endpoint: Text | None = None  # its address, which may be a local one; null is the API's own, searxng has none
    api_key_variable: VariableName | None = "SEARCH_API_KEY"  # the environment variable that holds the API's key
    parameters: Fields = field(default_factory=dict)  # further fields of a request, as they are: {gl: us, hl: en} (B.1: us-en)
    timeout_s: Seconds = 20.0  # that a search or a page may take, redirects included, and its parsing once more. Our choice
    max_page_bytes: PositiveInt = 2_000_000  # a larger page is not read: its main text would take many seconds to find. Our choice
    concurrency: PositiveInt = 32  # searches and fetches under way at once, of each. Our choice


@dataclass
class SearchConfig:
    """The research domain's `search` and `browse` (3.2, B.2, InfoAgent); null leaves a stage out. The paper: Qwen3-Embedding-0.6B,
    Qwen3-Reranker-0.6B, GPT-4o-mini for snippets."""

    engine: Literal["corpus", "folder", "web"] = "corpus"  # where pages come from: embedded, documents on disk, a web search API
    corpus_size: Size = 3000  # entities, a page each, of the embedded encyclopedia, made from environment.world_seed
    folder: Text | None = None  # of `folder`: text, Markdown, HTML and JSONL files, at any depth
    indexes: Text = "runs/search"  # where the index of a folder is kept, for all runs and processes
    web: WebConfig = field(default_factory=WebConfig)
    results: PositiveInt = 5  # pages that a search shows
    search_chunk_tokens: PositiveInt = 128  # of the chunks that a search looks at; a token is a word, or a Chinese character
    browse_chunk_tokens: PositiveInt | None = 2048  # of the chunk that browsing shows; null shows the page
    bm25_chunks: PositiveInt | None = 40  # a page's best chunks by the query; null takes all
    snapshot_chunks: PositiveInt | None = 3  # and by what the web search shows of it (Eq. 5)
    embedder: Text | None = None  # an embedding model: all-minilm-l6-v2, out of the package index, a hub id or a local folder; needs
    # sentence-transformers
    embedded_chunks: PositiveInt = 8  # that it leaves
    reranker: Text | None = None  # the same of a cross-encoder
    reranked_chunks: PositiveInt = 3  # that it leaves, or BM25 without it, for a snippet; browsing shows the first
    device: DeviceName = "cpu"  # where these two run; the GPU is the policy's. Our choice
    snippet: LLMConfig = field(default_factory=LLMConfig)  # who writes snippets: embedded takes whole sentences of the page
    snippet_words: PositiveInt = 60  # of a snippet, at most
    summary: LLMConfig = field(default_factory=LLMConfig)  # who shortens what browsing shows: embedded takes its first sentences
    summary_above_chars: PositiveInt | None = 2500  # what is longer is shortened to that (Appendix C, ArenaRL); null: never (InfoAgent)
    cache: Text | None = "runs/search/cache.sqlite"  # what web and models gave, for all runs and processes (B.3); null keeps it in memory

    @property
    def llms(self) -> dict[str, LLMConfig]:
        return {"snippet": self.snippet, "summary": self.summary}


@dataclass
class RenamedToolConfig:
    """A tool that the policy knows by another name (the key in `rename`), with other arguments, or that takes several of the server's."""

    tool: Text | None = None  # the server's name of it
    arguments: dict[Text, Text] = field(default_factory=dict)  # the policy's name of an argument → the server's; the others keep theirs
    function: OwnFunction | None = None  # in place of `tool`: package.module:function, whose first argument `call` makes the server's calls
    like: EnvironmentName | None = None  # one of our environments, whose tool of this name says description and arguments; null: the
    # server's tool does, or the function's docstring


@dataclass
class MCPServerConfig:
    """Whose tools a policy gets with `environment.name: mcp`: `command`, `url` or `world`. Not in the paper but for the services; our choices."""

    command: list[Line] | None = None  # starts a server that talks over stdin and stdout: [uvx, amap-mcp-server]
    url: Text | None = None  # of a server that talks streamable HTTP: http://127.0.0.1:8000/mcp
    world: EnvironmentName | None = None  # tools of an environment of this project in this process, without a server: travel, research
    allow: list[Text] | None = None  # the server's tools that the policy gets by their own names; null: all, [] none but those of `rename`
    rename: dict[Text, RenamedToolConfig] = field(default_factory=dict)  # the policy's name of a tool → what answers; that tool then has no other
    session: Literal["shared", "trajectory"] = "shared"  # one for all trajectories, for servers that only read; or one each, for those with a
    # state, which is lost with it
    cache: Bool = True  # of a shared session: keep what a call gave in judge.store, so that it is made once for all runs; errors are not kept
    timeout_s: Seconds = 30.0  # a call that takes longer is an error that the policy sees; a server that does not even list its tools then is dead
    start_timeout_s: Seconds = 120.0  # until a server has started and said hello; uvx and npx may have to fetch it first
    concurrency: Few = 16  # calls under way at once in a process
    max_chars: PositiveInt = 8000  # of a result; what is longer is cut
    env: dict[VariableName, Line] = field(default_factory=dict)  # of `command`: variables and what they hold, beside PATH, HOME and the like
    variables: list[VariableName] = field(default_factory=list)  # of `command`: variables of this process that are handed on: [AMAP_MAPS_API_KEY]
    api_key_variable: VariableName | None = None  # of `url`: the environment variable that holds the server's key
    api_key_parameter: Name | None = None  # of `url`: the parameter that carries the key; null: a bearer token

    @property
    def says(self) -> str:
        """What names it in a message."""
        return self.url or (" ".join(self.command) if self.command else f"the world {self.world}")


@dataclass
class EnvironmentConfig:
    name: EnvironmentName = "travel"  # the tools: travel, research, a world of AgentGym-RL, a browser, those of MCP servers, none (query,
    # thinking, text), or a class of your own as package.module:Class
    domain: DomainName = "travel"  # of the queries: travel, research, writing, textcraft, babyai, one of your own as package.module:Class, or a name
    # that has nothing but a rubric, configs/rubrics/<domain>_<language>.yaml, for LLM judges and your own (arenarl/domains/domain.py)
    world_seed: Seed = 0  # makes the points of interest and timetables
    results: Literal["full", "compact"] = "full"  # JSON with all fields, or a line a record for a tiny policy
    tickets: LLMConfig = field(default_factory=LLMConfig)
    # who invents flights and trains in rollouts: the embedded world, or an LLM as in the paper (Appendix C), for runs with LLM judges
    search: SearchConfig = field(default_factory=SearchConfig)  # of `research`
    server: Text | None = None  # of a class that is an OpenEnv client: the address of its server
    mcp: list[MCPServerConfig] = field(default_factory=list)  # of `mcp`: the servers whose tools the policy gets (docs/domains.md)
    schemas_in_prompt: Bool = True  # tell the policy the tools' JSON schemas; a tiny policy learns them from SFT instead
    actions: ActionForm = "tool_calls"  # how a policy acts: Qwen3's tool calls, or text, `Thought: … Action: …` (AgentGym), for
    # an environment with one tool that takes one text; no schemas are told then
    instances: PositiveInt | None = None  # of an environment that keeps a state, at work at once in a process, a trajectory each; the others
    # wait; null: as many as trajectories are generated at once. Our choice

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
    group_size: Annotated[Few, Field(ge=2)] = 16  # N: trajectories a query, the anchor included (Appendix A)
    temperature: Annotated[Float, Field(ge=0.01, le=100)] = 0.8  # of all but the anchor (4.2)
    anchor: Bool = True  # row 0 of a training group is decoded greedily (4.2)
    max_turns: PositiveInt = 12  # assistant turns a trajectory may take. Not in the paper; our choice
    turn_schedule: list[PositiveInt] | None = None  # fewer in RL, stage by stage: h_1 < h_2 < … (3.3, AgentGym-RL: ScalingInter-RL); null: max_turns
    turns_every: PositiveInt | None = None  # optimizer steps of a stage (Delta, 3.3, AgentGym-RL); null shares rl.steps evenly
    max_tokens: PositiveInt = 16384  # tokens a trajectory may take after its prompt, observations included. Our choice
    max_turn_tokens: PositiveInt = 4096  # tokens a single assistant turn may take. Our choice
    system_prompt: Prose | None = None  # what a policy whose weights are here is told before the query, in SFT, RL and evaluation alike: a text, a
    # file of one that ends in .txt or .md, or none; null is none for a policy from scratch, and where policy.model or rl.init names a model what
    # train_sft.py or train_rl.py told it, or the text of configs/prompts/policy_<data.language>. Not in the paper; our choice
    force_answer: Bool = False  # the last turn that the budgets leave room for begins as an answer (C.2, InfoAgent: in evaluation)
    batch_size: PositiveInt = 256  # trajectories that a process generates at once. Our choice
    backend: Literal["transformers", "vllm", "vllm_server"] = "transformers"  # what generates; the paper does not say. Our choice
    # vllm: an engine in every training process, on the same GPU. vllm_server: `python -m arenarl.rollout.vllm_server`, on GPUs of its own.
    vllm_memory: Annotated[Share, Field(gt=0)] = 0.3  # of `vllm`: share of the GPU's memory that its weights and cache take in training. Our choice
    vllm_sleep: Bool = False  # of `vllm`: in training it gives its memory back between rollouts; needs GPUs. Our choice
    vllm_tensor_parallel: PositiveInt = 1  # of `vllm`: processes, next to each other in rank, whose GPUs share an engine. Our choice
    server_url: Text = "http://127.0.0.1:8000"  # of `vllm_server`
    server_sync: Literal["disk", "nccl"] = "disk"  # of `vllm_server`: how each step's weights get there; nccl needs GPUs on both sides. Our choice
    server_weights: Text | None = None  # of `server_sync: disk`: the folder through which they do, on a disk that the server sees too, such
    # as /dev/shm/policy on one machine; null is the run's own folder
    parity_steps: PositiveInt = 20  # optimizer steps between checks that vLLM agrees with the trainer, the first before step 1. Our choice
    parity_bound: PositiveFloat = 0.05  # nats: a larger mean difference of the logprobs of vLLM's greedy tokens stops the run. Our choice

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
    name: JudgeName = "embedded"  # embedded: the world's truth, plus the noise below. llm: the model. package.module:Class: a judge of your own
    process_aware: Bool = True  # false: the judge sees the answers only (3.3 argues for the whole trajectory)
    show_tool_results: Bool = True  # false: thoughts, calls and answer only (3.3 names these). An embedded judge then believes the answer
    max_result_chars: PositiveInt = 2000  # a longer tool result is shown to an LLM with its middle left out. Our choice
    max_text_chars: PositiveInt = 20000  # the same for a thought, a call or an answer. Our choice
    query_rubrics: Text | None = None  # JSONL of rubrics written for each query (Appendix A, Tournament-GRPO); null: the domain's rubric
    noise: Literal["none", "simulated"] = "simulated"  # `none` is the truth itself
    sigma_independent: Spread = 1.0  # points of 10, drawn anew for every dimension score of every call
    sigma_call: Spread = 1.0  # drawn once a call, shared by the two trajectories it shows: scoring drift
    sigma_sticky: Spread = 0.3  # drawn once a trajectory, so that asking again does not average it out: taste
    position_bias: Points = 0.3  # added to whichever is shown first, taken from the second
    length_bias: Points = 0.3  # points for a natural-log unit of answer length above the typical one
    typical_chars: PositiveInt = 90  # characters of such an answer; scores end at 0 and 10, so it decides where the bias is still felt
    rounding: Annotated[Float, Field(ge=1e-6, le=100)] = 0.5  # scores come in steps of this many points
    listwise_noise: Spread = 1.0  # of a call that scores a whole group (reward.name=ruler): times as much of
    # sigma_independent, sigma_call and position_bias
    flip_rate: Annotated[Float, Field(ge=0, le=0.5)] | None = None  # of a checklist's items (reward.name=rubric_checklist): the share of answers
    # that are wrong; null: as many as make an answer as reliable as a score by the noise above (arenarl/judges/embedded.py)

    @property
    def is_simulated(self) -> bool:
        """Whether verdicts come from the embedded world, here or through `arenarl.judges.server`."""
        return self.name == "embedded" or self.model == SIMULATED_MODEL


@dataclass
class JudgesConfig:
    train: JudgeConfig = field(default_factory=JudgeConfig)  # gives the reward (paper: Qwen3-Max)
    eval: Annotated[list[JudgeConfig], Field(min_length=1)] = field(default_factory=lambda: [JudgeConfig()])
    # win rate is their mean (5.3: two judges)
    watch: JudgeConfig = field(default_factory=JudgeConfig)  # scores a share of RL's groups beside `train`, by itself, and has no part in any
    # reward: it shows whether the policy gets better or learns to please its judge (docs/judges.md). Not in the paper; our choice
    watch_share: Share = 0.0  # of the groups, drawn by `seed`, that it scores; 0: there is no watching judge
    verifier: LLMConfig = field(default_factory=LLMConfig)  # who says whether an answer is the known one: embedded compares them exactly but
    # for capitals, blanks and articles; llm asks the model (C.2, InfoAgent: o4-mini)

    # What follows bounds the LLM calls of a run, over all its judges and processes, and changes no verdict. Our choices.
    concurrency: PositiveInt = 64  # calls under way at once; the processes of RL share them evenly
    store: Text = "runs/replies.sqlite"  # every reply is kept here and never paid for twice; runs can share it
    store_only: Bool = False  # take replies from the store alone: no key, no call; a missing reply stops the run
    max_calls: PositiveInt | None = None  # calls that a run may pay for, over all its stages and restarts; then it stops, its checkpoint saved
    max_cost: PositiveFloat | None = None  # the same in money, by price_in and price_out
    max_failure_share: Share = 0.2  # of the last 200 verdicts; above it the run stops, its checkpoint saved

    @property
    def watching(self) -> dict[str, JudgeConfig]:
        """`watch` by its key, if it has a share of the groups."""
        return {"judge.watch": self.watch} if self.watch_share else {}


@dataclass
class TournamentConfig:
    topology: TopologyName = "seeded_single_elimination"  # Section 4, Table 2; single_elimination has random seeds; balanced, not in the
    # paper, spreads matches evenly; elo and random_reference are rivals' (docs/methods.md); or one of your own, a class derived from Topology
    # (docs/tournament.md)
    placement: Literal["standard", "algorithm1"] = "standard"  # seeds in the bracket; algorithm1 is the paper's literal one
    bidirectional: Bool = True  # ask about a pair in both orders (Eq. 3); false asks once, and the position bias stays
    accumulate: Literal["mean", "sum"] = "mean"  # order inside a tier: 4.3's text says average, Algorithm 1 sums
    matches: Text = "2n-2"  # of balanced: a number, or a multiple of the entrants n. Not in the paper; our choice
    elo_matches: PositiveInt | None = None  # of elo, and of reward.name=elo: matches; null is ⌈N log₂ N⌉ (TournO). At most one a pair
    elo_estimate: Literal["sequential", "bradley_terry"] = "sequential"  # of elo: ratings that follow each match (TournO), or those that explain
    # all outcomes best, whatever their order. Our choice
    ranking: Literal["bracket", "scores"] | None = None  # the topology's rules (Section 4), or a mixed-effects model of all scores
    # (not in the paper; our choice); null is bracket, and scores for balanced, which has no rules of its own
    timeout_s: Seconds | None = None  # a judge call that takes longer has failed; null waits. Not in the paper; our choice


@dataclass
class GroupStageConfig:
    """The tournament of `reward.name: tournament_grpo`. The defaults are the best row of Table 2, Tournament-GRPO."""

    repeats: Few = 8  # M: tournaments whose points are added up
    group: Annotated[Few, Field(ge=2)] = 4  # G: trajectories that a call shows, at most
    winners: Few = 2  # K_win: how many of them go on
    final: Few = 2  # K_final: a tournament ends when no more are left
    weights: list[PositiveFloat] = field(default_factory=lambda: [1.0])  # omega_t: points of a win by round, the last for all later (4.1: 1)


BY_ANSWER = {"correctness", "correctness_or_tournament"}  # those that look for a known answer
OUTCOMES = {"environment", "correctness"}  # without a judge
WITH_FORMAT_REWARD = {"tournament_grpo", "win_rate", "pointwise_implicit", "pointwise_explicit"}  # Tournament-GRPO's


@dataclass
class RewardConfig:
    name: RewardName = "tournament"
    # what a trajectory's reward is made of; docs/methods.md, "Rewards", says it of each, with its source. Or a function of your own:
    # (query, trajectories, judge) -> a reward each
    entity_recall: Annotated[Float, Field(ge=0, lt=1)] = 0.0  # lambda of Eq. 8, InfoAgent: what a wrong answer gets for finding all entities of
    # a known answer's tree; below 1, so that it is worth less than the right one
    tournament_if_equal: Bool = False  # of environment and correctness: a group whose rewards are all equal is ranked by the tournament instead
    # (Reasoning Arena). Our choice
    alpha: NonNegativeFloat = 3.0  # of mixture: r_point + exp(-alpha mean(r_point)) r_pair: pairs count less the better the group is. TournO's
    mixture_pairs: Literal["win_rate", "elo"] = "win_rate"  # of mixture, r_pair: share of all others beaten, or Elo ratings as in elo (TournO: both)
    repeats: Few = 1  # of pointwise_answer and pointwise_trajectory: calls a trajectory, whose mean it gets; a control that pays for as many
    # calls as a tournament. Not in the papers; our choice


@dataclass
class SFTConfig:
    epochs: Annotated[Float, Field(ge=0.001, le=10_000)] = 3.0  # Appendix A
    learning_rate: LearningRate = 2e-5  # Appendix A
    lr_scheduler: SchedulerName = "cosine"  # how it falls over the steps; as transformers names it. Our choice
    warmup_ratio: Annotated[Float, Field(ge=0, lt=1)] = 0.03  # share of the steps. Our choice
    weight_decay: Share = 0.0  # our choice
    adam_beta2: Annotated[Float, Field(ge=0, lt=1)] = 0.999  # how long AdamW remembers squared gradients. Not in the paper; AdamW's default
    batch_size: PositiveInt = 1  # trajectories a process and step (Appendix A: 1 a GPU)
    gradient_accumulation: PositiveInt = 1  # steps summed before an update
    max_length: PositiveInt = 16384  # tokens; longer trajectories are cut, counted and reported. Our choice
    save_steps: PositiveInt = 200  # optimizer steps between checkpoints
    stop_at_valid: Share | None = None  # share of valid trajectories at which SFT ends, tried every `save_steps` steps; null: train to the end
    deepspeed: Text | None = "ds_config.json"  # ZeRO-3 (Appendix A); null trains without DeepSpeed


@dataclass
class DifficultyConfig:
    """Which queries with a known answer are worth training on: `python -m arenarl.training.difficulty` finds out (4.1, InfoAgent)."""

    filter: Bool = False  # train only on queries that the SFT policy answers at times; those without a known answer stay
    samples: Few = 4  # trajectories a query, without a greedy one
    low: Share = 0.25  # least share of them that is correct
    high: Annotated[Share, Field(gt=0)] = 0.75  # largest


@dataclass
class RLConfig:
    init: Text | None = None  # folder or hub id that RL starts from; null takes the SFT policy of `init_run`
    init_run: RunName | None = None  # name of the run whose SFT policy of the same seed RL starts from; null is this run
    steps: PositiveInt = 200  # optimizer steps. Our choice (Fig. 4c shows 160)
    groups: PositiveInt = 8  # K: queries that are rolled out at once, over all processes (Appendix A)
    micro_batch_size: PositiveInt = 1  # trajectories a process puts through the model at once
    learning_rate: LearningRate = 1e-6  # Appendix A
    lr_scheduler: SchedulerName = "constant"  # how it falls over the steps; as transformers names it. Our choice

    method: Literal["online", "dpo", "agentevol"] = "online"  # online: GRPO and its kin, by the keys below. dpo, agentevol: rounds of rollouts, then
    # training on pairs of them, or on the best (3.2.2, AgentGym-RL; arenarl/training/offline.py)
    rounds: PositiveInt = 1  # of dpo and agentevol: together they roll out what `steps` of online RL do. AgentGym-RL gives none; our choice
    batch_size: PositiveInt = 16  # of dpo and agentevol: pairs or trajectories an optimizer step, over all processes. Our choice
    dpo_beta: PositiveFloat = 0.1  # of dpo: how dear it is to leave the reference policy. TRL's choice
    keep_from: Annotated[Float, Field(ge=-1e6, le=1e6)] = 1.0  # of agentevol: the least reward of a trajectory that is trained on. AgentGym-RL
    # keeps successes, 1; of a group that was ranked, the best are kept in any case

    # What makes the method, with `reward.name`. configs/methods/ spells each one out.
    advantage: Literal["group_std", "center", "leave_one_out", "batch_std", "decoupled", "gae", "none"] = "group_std"
    # of a trajectory in its group. group_std: reward less the mean, by the standard deviation (Eq. 7; GRPO, GSPO, DAPO). center: less
    # the mean (Dr.GRPO). leave_one_out: less the mean of the others (RLOO). batch_std: less the mean, by the standard deviation of all
    # that over the step (REINFORCE++ with baseline). decoupled: reward and validity, each as in group_std, summed and standardised
    # over the step (GDPO). gae: of a token, by a critic (PPO; arenarl/training/ppo.py). none: the reward as it is (BRPO)
    advantage_ddof: Annotated[Int, Field(ge=0, le=1)] = 1  # of group_std: the variance divides by N - ddof; the paper does not say. TRL's choice
    advantage_epsilon: NonNegativeFloat = 1.0e-4  # of group_std: added to the standard deviation in Eq. 7; the paper gives no value. TRL's choice
    discount: Annotated[Float, Field(ge=0, le=1)] = 1.0  # of gae: what a reward is still worth a token before it. AgentGym-RL's
    gae_lambda: Annotated[Float, Field(ge=0, le=1)] = 1.0  # of gae: 1 waits for the reward, 0 trusts the critic's next value. AgentGym-RL's
    critic_learning_rate: LearningRate = 1e-5  # of gae, constant. AgentGym-RL's
    importance_sampling_level: Literal["token", "sequence"] = "token"  # Eq. 8 is written per trajectory: sequence is GSPO
    loss_type: Literal["grpo", "dr_grpo", "dapo"] = "grpo"  # token losses are averaged by trajectory and then over them (grpo, as in
    # Eq. 8), over all of the update's tokens (dapo), or summed and divided by a constant, rollout.max_tokens (dr_grpo)
    epsilon: Annotated[Float, Field(gt=0, lt=1)] = 0.2  # clip range of Eq. 8; the paper gives no value. Our choice
    epsilon_high: Annotated[Float, Field(gt=0, le=100)] | None = None  # upper clip range, if it differs (DAPO: clip-higher)
    updates_per_rollout: PositiveInt = 1  # optimizer steps that share a step's rollouts; at 1 every ratio of Eq. 8 is 1, so that neither its clip
    # range nor its level counts. The paper does not say; our choice
    beta: NonNegativeFloat = 0.001  # weight of the KL term in Eq. 8, 0 without one; the paper gives no value. Our choice
    subtasks: Annotated[list[Text], Field(min_length=1)] | None = None  # train on these only; null means all but M-Day, which SFT does not see either
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    max_grad_norm: PositiveFloat = 1.0  # gradients are clipped to this norm. Our choice
    stop_without_valid: PositiveInt | None = 10  # steps in a row without a valid trajectory, or without a first reward of the world that is to
    # give it, after which RL saves a checkpoint and stops; null: never
    save_steps: PositiveInt = 20  # optimizer steps between checkpoints
    eval_steps: Annotated[Int, Field(ge=0, le=1_000_000_000)] = 20  # optimizer steps between evaluations on a few held-out queries (Fig. 4c's
    # curve); 0 for none
    eval_queries: PositiveInt = 50  # how many, spread over the subtasks
    deepspeed: Text | None = None  # a DeepSpeed JSON: ZeRO-3 shares parameters, gradients and optimizer over the processes, as full fine-tuning
    # of Qwen3-8B needs; null: each process holds them all. The paper names ZeRO-3 for SFT only; our choice

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
    checkpoints: dict[Name, Text] = field(default_factory=dict)  # name -> folder or hub id; none here nor in `api`: this run's sft and rl
    api: dict[str, LLMConfig] = field(default_factory=dict)  # name -> a closed model that is evaluated beside them with the same tools
    # and budgets (Table 3's first rows), as {gpt-4o: {base: ../policies/gpt_4o.yaml}}. The turn budgets and temperature are those of
    # `rollout`: max_reply_tokens and reply_format count for judges only, temperature only where null, which sends none
    decodings: Annotated[list[Literal["sampled", "greedy"]], Field(min_length=1)] = field(default_factory=lambda: ["sampled", "greedy"])
    # at rollout.temperature, and at 0; of RL's curve too
    samples: Few = 1  # trajectories a query when sampled, all of which count; of more than one, pass@k too (Fig. 9, AgentGym-RL)
    max_turns: list[PositiveInt] | None = None  # test-time turns: figures for each of these budgets (Fig. 8, AgentGym-RL), the table by the largest;
    # null is rollout.max_turns. Not where the world ends trajectories
    bootstrap: Annotated[Size, Field(ge=20)] = 2000  # resamples for the 95 % intervals
    bracket: Bool = False  # after the matches with the baseline, play each query's tournament to its end, for the report; costs at most 2n-2
    # calls a query for n trajectories, with the first of judge.eval, and changes no figure. Not in the paper; our choice

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """(decoding, number) of each trajectory of a query; a greedy one is the same however often it is tried."""
        return [(decoding, number) for decoding in self.decodings for number in range(self.samples if decoding == "sampled" else 1)]


@dataclass
class WandbConfig:
    project: ProjectName = "arenarl"  # where runs are listed
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"  # auto: online with a login, else offline; never asks


@dataclass
class Config:
    name: RunName = "run"  # names the folders runs/<name> and results/<name>
    results: Text = "results"  # where results/<name> lies
    seed: Seed = 0  # everything random in training derives from it; other seeds than 0 get folders of their own
    threads: Few = 1  # CPU threads a process; results depend on it, so it belongs to the seed
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
        return {**self.evaluate.checkpoints, **self.evaluate.api} or {"sft": self.sft_policy, "rl": str(self.run_dir / "rl")}

    def llms_of(self, stage: str) -> list[LLMConfig]:
        """Whom a stage may ask: judges, verifier, simulated tools, policies behind an API. Those named `embedded` are no LLMs."""
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
        """Where `arenarl.training.difficulty` leaves those of the policy that RL starts from: beside it, for all runs that do."""
        folder = self.run_dir if self.rl.init else Path(self.sft_policy).parent
        return folder / "difficulty" / "pass_rates.jsonl"

    @property
    def turns(self) -> TurnSchedule:
        """Optimizer step → turns that a training trajectory may take."""
        return turn_schedule(self.rollout.turn_schedule, self.rollout.turns_every, self.rollout.max_turns, self.rl.steps)

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
