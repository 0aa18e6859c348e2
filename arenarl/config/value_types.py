"""What the value of a key may be: numbers with their ranges, text, and names, which become folders and files.

`schema` names one of these for each key. The far ends of ranges that have no reason of their own lie where no run gets:
a slip of the keyboard is found, and nothing overflows. No type takes another's values: true is no number, "off" is no
truth value.
"""

import json
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, Strict, WithJsonSchema

from arenarl.system.errors import did_you_mean
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
Points = Annotated[Float, Field(ge=-100, le=100)]  # of a judge, whose scores end at 10
Spread = Annotated[Float, Field(ge=0, le=100)]  # of such points


def _written(pattern: str, words: str) -> AfterValidator:
    form = re.compile(pattern)

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(words)
        return text

    return AfterValidator(check)


def _as_text(value: Any) -> Any:
    """`name: 12` is text; 1.50 is not, since what is left of it is 1.5."""
    return str(value) if type(value) is int else value


def _fits_a_path(text: str) -> str:
    if max(len(part.encode()) for part in text.split("/")) > 200:  # of the 255 bytes that file systems take
        raise ValueError("is too long: no part between two / may have more than 200 bytes")
    return text


_NAME = r"\w[\w.-]{0,99}"
_OF_NAMES = "letters, digits, . _ and -, the first neither . nor -"
_CLASS = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_OWN = "or a class of your own as package.module:Class"
REWARDS = (
    "tournament", "pointwise_answer", "pointwise_trajectory", "tournament_grpo", "win_rate", "pointwise_implicit",
    "pointwise_explicit", "environment", "correctness", "correctness_or_tournament", "ruler", "brpo", "mixture", "elo",
    "rubric_checklist",
)  # fmt: skip


def _one_of(names: Collection[str], kind: str = "Class") -> tuple[AfterValidator, WithJsonSchema]:
    """One of these, or a class or function of one's own."""
    form, own = re.compile(_CLASS), f"package.module:{kind}"

    def check(text: str) -> str:
        if text not in names and not form.fullmatch(text):
            raise ValueError(
                f"choose {', '.join(names)}, or a {kind.lower()} of your own as {own}{did_you_mean(text, names)}"
            )
        return text

    return AfterValidator(check), WithJsonSchema({"enum": [*names, own]})


Line = Annotated[
    str,
    BeforeValidator(_as_text),
    _written(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,1000}", "must be a line of text, of 1 to 1000 characters"),
]
Text = Annotated[Line, AfterValidator(_fits_a_path)]
Prose = Annotated[
    str,
    BeforeValidator(_as_text),
    _written(r"(?=\s*\S)[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]{1,20000}", "must be text, of 1 to 20000 characters"),
]
Name = Annotated[Text, _written(_NAME, f"must be a name of {_OF_NAMES}")]
RunName = Annotated[
    Text,
    _written(rf"{_NAME}(?:/{_NAME}){{0,3}}", f"must be a name of {_OF_NAMES}, or up to four of them with / between"),
]
_OF_VARIABLE = "must be the name of an environment variable, not what it holds"
VariableName = Annotated[Text, _written(r"[A-Za-z_][A-Za-z0-9_]*", _OF_VARIABLE)]
# a field of a judge's reply
DimensionName = Annotated[str, _written(r"(?!model_)[A-Za-z]\w{0,60}", "must be a word, such as answer_clarity")]
JudgeName = Annotated[Text, *_one_of(("embedded", "llm"))]
_DOMAINS = ("travel", "research", "writing", "textcraft", "babyai", "sciworld", "searchqa")
_ENVIRONMENTS = ("travel", "research", "textcraft", "babyai", "sciworld", "mcp", "none")
EnvironmentName = Annotated[Text, *_one_of(_ENVIRONMENTS)]
TopologyName = Annotated[Text, *_one_of(TOPOLOGIES)]
RewardName = Annotated[Text, *_one_of(REWARDS, "function")]
OwnFunction = Annotated[Text, _written(_CLASS, "must be a function of your own as package.module:function")]
_OF_DOMAINS = f"choose {', '.join(_DOMAINS)}, the name of a rubric, {_OWN}"
DomainName = Annotated[Text, _written(f"{_NAME}|{_CLASS}", _OF_DOMAINS)]
ActionForm = Literal["tool_calls", "text"]
_DEVICE = r"cpu|mps|(?:cuda|xpu|npu)(?::\d{1,3})?"
DeviceName = Annotated[Text, _written(_DEVICE, "must be a device such as cpu, cuda or cuda:1")]
_PROJECT = "must be a name of at most 128 characters, without / \\ # ? % :"
ProjectName = Annotated[Text, _written(r"[^/\\#?%:]{1,128}", _PROJECT)]
SchedulerName = Literal["constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "inverse_sqrt"]


def _without_nan(fields: dict[str, Any]) -> dict[str, Any]:
    json.dumps(fields, allow_nan=False)  # a ValueError: JSON has no NaN
    return fields


Fields = Annotated[dict[str, JsonValue], AfterValidator(_without_nan)]
