"""Types of config values: numbers with ranges, text, and names, which become folders and files.

`schema` names one of these types for each key. Upper limits without another reason lie far above any real run, to catch
typing errors and overflows. Types are strict: true is not a number, and "off" is not a boolean.
"""

import json
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, Strict, WithJsonSchema

from arenarl.system.errors import did_you_mean
from arenarl.system.masking import has_form_of_secret, is_random
from arenarl.system.user_input import home_path
from arenarl.tournament.topologies import TOPOLOGIES

Bool = Annotated[bool, Strict()]
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
PositiveInt = Annotated[Int, Field(gt=0, le=1_000_000_000)]
Size = Annotated[Int, Field(gt=0, le=1_000_000)]
Few = Annotated[Int, Field(gt=0, le=10_000)]
Seed = Annotated[Int, Field(ge=0, lt=2**32)]  # NumPy's range
PositiveFloat = Annotated[Float, Field(gt=0, le=1e9)]
NonNegativeFloat = Annotated[Float, Field(ge=0, le=1e9)]
Share = Annotated[Float, Field(ge=0, le=1)]
LearningRate = Annotated[Float, Field(gt=0, le=1)]
Seconds = Annotated[Float, Field(gt=0, le=1e7)]
Points = Annotated[Float, Field(ge=-100, le=100)]  # on a judge's scale, 0 to 10
Spread = Annotated[Float, Field(ge=0, le=100)]  # standard deviation in these points


def _pattern(pattern: str, message: str) -> AfterValidator:
    """Return a validator that raises `message` unless the whole text matches."""
    form = re.compile(pattern)

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(message)
        return text

    return AfterValidator(check)


def _as_text(value: Any) -> Any:
    """Convert an integer to text, as in `name: 12`. A number such as 1.50 is refused: YAML drops its last digit."""
    return str(value) if type(value) is int else value


def _check_path_length(text: str) -> str:
    if max(len(part.encode()) for part in text.split("/")) > 200:  # file systems allow 255 bytes per name
        raise ValueError("is too long: no part between two / may have more than 200 bytes")
    return text


_NAME = r"\w[\w.-]{0,99}"
_NAME_RULE = "letters, digits, . _ and -, not starting with . or -"
_CLASS = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*"
REWARDS = (
    "tournament", "pointwise_answer", "pointwise_trajectory", "tournament_grpo", "win_rate", "pointwise_implicit",
    "pointwise_explicit", "environment", "correctness", "correctness_or_tournament", "ruler", "brpo", "mixture", "elo",
    "rubric_checklist", "evolving_rubrics", "circular", "dgr",
)  # fmt: skip


def _choice(names: Collection[str], kind: str = "Class", hint: str = "") -> tuple[AfterValidator, WithJsonSchema]:
    """Accept one of the names, or the import path of a user's class or function. `hint` ends the error."""
    form, own = re.compile(_CLASS), f"package.module:{kind}"

    def check(text: str) -> str:
        if text not in names and not form.fullmatch(text):
            near = did_you_mean(text, names)
            raise ValueError(f"choose {', '.join(names)}, or a {kind.lower()} of your own as {own}{near}{hint}")
        return text

    return AfterValidator(check), WithJsonSchema({"enum": [*names, own]})


# no control characters and no Unicode line ends; `Prose` also allows tabs and line feeds
Line = Annotated[
    str,
    BeforeValidator(_as_text),
    _pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,1000}", "must be a line of text, of 1 to 1000 characters"),
]
Text = Annotated[Line, AfterValidator(_check_path_length)]
Prose = Annotated[
    str,
    BeforeValidator(_as_text),
    _pattern(r"(?=\s*\S)[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]{1,20000}", "must be text, of 1 to 20000 characters"),
]
_HOME = AfterValidator(home_path)
File = Annotated[Text, _HOME]  # the path of a file or folder, or a hub id
Word = Annotated[Line, _HOME]  # a word of a command
Name = Annotated[Text, _pattern(_NAME, f"must be a name of {_NAME_RULE}")]
RunName = Annotated[
    Text,
    _pattern(rf"{_NAME}(?:/{_NAME}){{0,3}}", f"must be a name of {_NAME_RULE}, or up to four of them with / between"),
]
_VARIABLE_RULE = "must be the name of an environment variable, not its value"


def _refuse_secret(text: str) -> str:
    if is_random(text) or has_form_of_secret(text):
        raise ValueError(_VARIABLE_RULE)
    return text


VariableName = Annotated[Text, _pattern(r"[A-Za-z_][A-Za-z0-9_]*", _VARIABLE_RULE), AfterValidator(_refuse_secret)]
# a field of a judge's reply, which pydantic forbids to begin with model_
DimensionName = Annotated[str, _pattern(r"(?!model_)[A-Za-z]\w{0,60}", "must be a word, such as answer_clarity")]
JudgeName = Annotated[Text, *_choice(("embedded", "llm"), hint="; for a model, set base to a file of configs/judges")]
SERVERS = (  # AgentGym's
    "textcraft_server", "babyai_server", "sciworld_server", "alfworld_server", "searchqa_server", "webarena_server",
    "webshop_server", "sqlgym_server",
)  # fmt: skip
EnvironmentName = Annotated[
    Text, *_choice(("travel", "research", "textcraft", "babyai", "sciworld", *SERVERS, "mcp", "none"))
]
TopologyName = Annotated[Text, *_choice(TOPOLOGIES, hint="; the group stage is reward.name=tournament_grpo")]
RewardName = Annotated[Text, *_choice(REWARDS, "function")]
OwnFunction = Annotated[Text, _pattern(_CLASS, "must be a function of your own as package.module:function")]
_DOMAINS = (
    "choose travel, research, writing, textcraft, babyai, sciworld, searchqa, agentgym, the name of a rubric, "
    "or a class of your own as package.module:Class"
)
DomainName = Annotated[Text, _pattern(f"{_NAME}|{_CLASS}", _DOMAINS)]
ActionForm = Literal["tool_calls", "text"]
AdvantageName = Literal[
    "group_std", "center", "leave_one_out", "batch_std", "global_std", "decoupled", "gae", "none", "step_credit",
    "gigpo", "rtmc",
]  # fmt: skip
_DEVICE = r"cpu|mps|(?:cuda|xpu|npu)(?::\d{1,3})?"
DeviceName = Annotated[Text, _pattern(_DEVICE, "must be a device such as cpu, cuda or cuda:1")]
_PROJECT_RULE = "must be a name of at most 128 characters, without / \\ # ? % :"
ProjectName = Annotated[Text, _pattern(r"[^/\\#?%:]{1,128}", _PROJECT_RULE)]
SchedulerName = Literal["constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "inverse_sqrt"]


def is_prompt_file(text: str) -> bool:
    """Return True if the key `rollout.system_prompt` holds a file's path, not the prompt itself."""
    return "\n" not in text and text.endswith((".txt", ".md"))


Prompt = Annotated[Prose, AfterValidator(lambda text: home_path(text) if is_prompt_file(text) else text)]


def _refuse_nan(fields: dict[str, Any]) -> dict[str, Any]:
    json.dumps(fields, allow_nan=False)  # raises ValueError for NaN, which JSON does not have
    return fields


Fields = Annotated[dict[str, JsonValue], AfterValidator(_refuse_nan)]
