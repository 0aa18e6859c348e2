"""Find facts in a text by their form: ¥1,290, 09:00-17:00, 5.2km, 1 h 20 min, G10, 2026-05-01, 12.5%, a URL.

Facts have normalised values: a distance in metres, a duration in minutes, a clock time in minutes of the day. Texts of
policies and web pages may hold thousands of digits, so every pattern bounds their number. Patterns spell out word
boundaries, because Chinese characters count as \\w.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SERVICE_NUMBER = re.compile(r"(?<![A-Za-z0-9])([A-Z]{2}\d{4}|[GDCZTK]\d{1,4})(?![A-Za-z0-9])")  # a flight or train
DASH = r"[^\S\n]*(?:[-‐-―−－~～〜]|to|至|到)[^\S\n]*"
HOURS = re.compile(rf"(\d{{1,2}}:\d\d){DASH}(\d{{1,2}}:\d\d)")
_END = r"(?!\d|:\d)"  # the end of a clock time; a colon may follow, as in 9:00: the museum
CLOCK = re.compile(rf"(?<![\d:])(\d{{1,2}}:\d\d){_END}")
_YUAN = r"(\d{1,3}(?:,\d{3}){1,2}(?:\.\d{1,2})?|\d{1,7}(?:\.\d{1,2})?)"  # 30, 30.5 or 1,290
PRICE = re.compile(rf"(?i)[¥￥]\s*{_YUAN}(?!\.?\d)|(?<![\d.]){_YUAN}\s*(?:元|(?:yuans?|RMB|CNY)(?![A-Za-z]))")
DURATION = re.compile(
    # in "1 hour, 20 m" the m means metres
    r"(?i)(?<![\d.])(?:(\d{1,3})\s*(?:个?小时|h(?:(?:ou)?rs?)?\.?)(?!(?<=hour|ours), ?\d{1,2} ?m(?![A-Za-z]))"
    r"\s{0,9},?\s{0,9}(?:and\s*|零|又)?(\d{1,2})\s*(?:m(?:in(?:ute)?s?)?(?![A-Za-z²³])|分)"
    r"|(\d{1,7})\s*(?:min(?:ute)?s?(?![A-Za-z])|分钟))"
)
TOTAL = re.compile(r"total|budget|合计|总计|总共|预算|共计", re.IGNORECASE)  # no tool returns a total
# words that may precede the hours of a visit
_LEADS = {"", "day", "第天", "morning", "afternoon", "evening", "早上", "上午", "中午", "下午", "晚上"}

_OTHER_MONEY = re.compile(
    rf"(?i)[$€£]\s*{_YUAN}(?!\.?\d)|(?<![\d.]){_YUAN}\s*(?:(?:dollars?|euros?|USD|EUR)(?![A-Za-z])|美元|欧元)"
)
_START = r"(?i)(?<![A-Za-z0-9.])"
_DISTANCE = re.compile(
    rf"{_START}(\d{{1,7}}(?:\.\d{{1,6}})?)\s*"
    r"(?:(km|kilomet(?:re|er)s?|公里|千米)|m|met(?:re|er)s?|米)(?![A-Za-z²³])"
)
_WHOLE_HOURS = re.compile(rf"{_START}(\d{{1,4}}(?:\.\d{{1,2}})?)\s*(?:个?小时|h(?:(?:ou)?rs?)?(?![A-Za-z]))")
_PERCENTAGE = re.compile(rf"{_START}(\d{{1,6}}(?:\.\d{{1,6}})?)\s*(?:%|％|percent|per cent)")
_MULTIPLES = {"万": 1e4, "亿": 1e8, "k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_NUMBER = re.compile(
    r"(?i)(?<![A-Za-z0-9_.])(\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d{1,9})?|\d{1,15}(?:\.\d{1,9})?)(?!\.?\d)"
    r"(?:\s?(万|亿|thousand|million|billion)|(k)(?![A-Za-z]))?"
)
_URL = re.compile(r"(?i)(?:https?://|www\.)[A-Za-z0-9_.~:/?#@!$&*+,;=%-]{3,2000}")
_CITATION = re.compile(
    r"[\[【]\s?[\"“”「『']([^\[\]【】\"“”\n]{2,300}?)[\"“”」』']\s?[^\[\]【】\n]{0,100}[\]】]|《([^《》\n]{2,300})》"
)
_MONTHS = tuple("January February March April May June July August September October November December".split())
_MONTH, _YEAR = rf"(?:{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _MONTHS)})\.?", r"(?:19|20)\d\d"
_DATES = (
    re.compile(rf"(?<!\d)(?P<y>{_YEAR})(?:-|/|\.|年\s?)(?P<m>\d{{1,2}})(?:-|/|\.|月\s?)(?P<d>\d{{1,2}})日?(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>)(?P<m>\d{1,2})月\s?(?P<d>\d{1,2})[日号]"),
    re.compile(rf"\b(?P<m>{_MONTH})\s(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s(?P<y>{_YEAR}))?{_END}"),
    re.compile(
        rf"(?<!\d)(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s(?:of\s)?(?P<m>{_MONTH})(?:,?\s(?P<y>{_YEAR}))?(?![A-Za-z\d])"
    ),
)
_WIDE_COLON = re.compile(r"(?<=\d)：(?=\d\d(?!\d|[:：]\d))")
_NUMBERED = ("day", "for", "gate", "stop", "step", "table", *_MONTHS, *(name[:3] for name in _MONTHS))
# "Day 2 - 4 pm" and "2026-05-02 - 4 pm" are not ranges
_NO_HOUR = "".join(rf"(?<!\b{word} )" for word in _NUMBERED) + r"(?<!-\d\d-)"
_SHARED_MERIDIEM = re.compile(  # 2:00-4:00 PM, 2 - 4 pm: the first hour has no am or pm
    rf"(?i)(?<![A-Za-z\d:.]){_NO_HOUR}(\d{{1,2}})(?::(\d\d))?(?={DASH}(\d{{1,2}})(?::(\d\d))?\s?([ap])\.?m\b)"
)
_TWELVE_HOURS = re.compile(r"(?<![\d:.])(\d{1,2})(?::(\d\d))?\s?([ap])\.?m\b\.?", re.IGNORECASE)
_CHINESE_HOURS = ("零", *"一二三四五六七八九十", "十一", "十二")
_AFTER_NOON = r"中午|下午|晚上|傍晚|(?<![最早])晚"  # 最晚9:30 is "at the latest"
# without a time of day before it, 一点 means "a bit"
_CHINESE_NUMERAL = re.compile(r"(?<=上午|早上|中午|下午|晚上|傍晚|凌晨)\s?(十[一二]?|[一二两三四五六七八九])(?=点)")
_CHINESE_CLOCK = re.compile(r"(?<![\d.])(\d{1,2})点(?:(\d{1,2})分|(半))?")
# 下午2:00-4:00
_CHINESE_COLON = re.compile(rf"({_AFTER_NOON})\s?(\d{{1,2}}):(\d\d)(?:({DASH})(\d{{1,2}}):(\d\d))?{_END}")
_LETTER = r"[^\W\d_\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # of a script with spaces between words
# where a match would be inside a word or a number
_WORD_GOES_ON = re.compile(rf"(?<={_LETTER})(?={_LETTER})|(?<=\d)(?=[.,]?\d)|(?<=\d[.,])(?=\d)")
_THOUSANDS = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d{1,9})?")
_APPROXIMATE = re.compile(
    r"(?i)(?:about|around|approximately|approx\.|roughly|nearly|almost|over|more than|[~≈约近])\s?$"
)


@dataclass(frozen=True)
class Fact:
    """A fact in a text. `value` is a number, (start, end) for hours, (year or None, month, day) for a date, or a text.

    `within` is the tolerance of a number: half a unit of its last digit, or a tenth of the number after a word such as
    "about".
    """

    kind: str  # url, citation, date, hours, clock, service, percentage, price, duration, distance, number
    text: str
    value: Any
    within: float = 0.0


def read_facts(text: str) -> Iterator[Fact]:
    """Yield the facts of a text, kind by kind. A character belongs to at most one fact."""
    rest = with_clocks(text)
    for kind, pattern, read in _FORMS:
        for match in pattern.finditer(rest):
            if (value := read(match)) is not None:
                yield Fact(kind, match.group().strip(), value, _slack(kind, match, value))
        rest = pattern.sub(lambda match: " " * len(match.group()), rest)


def with_clocks(text: str) -> str:
    """Rewrite clock times such as 5:30 pm, 5:30-6 pm, 下午5点半, 下午五点 and 下午5：30 as 17:30.

    >>> with_clocks("5:30-6 pm, 11-1 PM, 下午五点半, 下午5：30-6:00, 下午2点到4点")
    '17:30-18:00, 11:00-13:00, 17:30 , 17:30-18:00, 14:00 到16:00 '
    """
    text = _SHARED_MERIDIEM.sub(_clock_of_shared, _WIDE_COLON.sub(":", text))
    text = _TWELVE_HOURS.sub(
        lambda match: f"{int(match[1]) % 12 + 12 * (match[3].lower() == 'p'):02d}:{match[2] or '00'}", text
    )
    text = _CHINESE_NUMERAL.sub(lambda match: str(_CHINESE_HOURS.index(match[1].replace("两", "二"))), text)
    text = _CHINESE_CLOCK.sub(lambda match: f"{match[1]}:{30 if match[3] else int(match[2] or 0):02d} ", text)
    return _CHINESE_COLON.sub(_clock_of_colon, text)


def clocks_of(text: str) -> list[int]:
    """Return all clock times of a text in order, also both ends of ranges, in minutes of the day."""
    return [minutes_of(clock) for clock in CLOCK.findall(with_clocks(text))]


def numbers_of(text: str) -> set[float]:
    """Return every number in a text, also parts of dates; a comma for thousands is read both ways.

    >>> sorted(numbers_of("¥1,290.5 on 2026-05-01"))
    [1.0, 5.0, 290.5, 1290.5, 2026.0]
    """
    numbers = re.findall(r"\d{1,15}(?:\.\d{1,9})?", text) + _THOUSANDS.findall(text)
    return {float(number.replace(",", "")) for number in numbers}


def place_of(words: str, text: str) -> int:
    """Return the first index of these words in a text, not inside a longer word or number; -1 if they do not occur.

    >>> place_of("54,000", "954,000 or 54,000,000"), place_of("Ann", "Joanne, Ann"), place_of("西湖", "在西湖边")
    (-1, 8, 1)
    """
    place = text.find(words)
    while place >= 0 and (_WORD_GOES_ON.match(text, place) or _WORD_GOES_ON.match(text, place + len(words))):
        place = text.find(words, place + 1)
    return place


def stands_in(words: str, text: str) -> bool:
    """Return whether a text has these words, not inside a longer word or number."""
    return place_of(words, text) >= 0


def without_escapes(text: str) -> str:
    """Return a result's text with JSON's escapes of blanks and quotes undone, so that no word begins with their "n".

    >>> without_escapes(r'"A town.\\nKelmar"')
    '"A town. Kelmar"'
    """
    return re.sub(r"\\[nrt]", " ", text).replace('\\"', '"')


def minutes_of(clock: str) -> int:
    """Convert HH:MM into minutes since midnight.

    >>> minutes_of("9:05")
    545
    """
    hours, minutes = clock.split(":")
    return 60 * int(hours) + int(minutes)


def is_open(opens: Any, closes: Any, clock: Any) -> bool:
    """Return whether opening hours include a clock time; they may end after midnight.

    All three arguments are minutes, or all three are texts such as 09:05.

    >>> is_open(540, 1020, 1020), is_open("18:00", "02:00", "01:30")
    (False, True)
    """
    return opens <= clock < closes if opens < closes else clock >= opens or clock < closes


def starts_with_visit(text: str) -> bool:
    """Return whether a line starts with the hours of a visit, not opening hours: "10:00-12:00 Lotus Park"."""
    hours = HOURS.search(text)
    return hours is not None and re.sub(r"[\W\d]", "", text[: hours.start()]).lower() in _LEADS


def duration_of(match: re.Match) -> int:
    """Return the minutes of a match of DURATION."""
    return 60 * int(match[1] or 0) + int(match[2] or match[3])


def price_of(match: re.Match) -> float:
    """Return the number in a match of PRICE."""
    return float((match[1] or match[2]).replace(",", ""))


def leaves_of(value: object, with_keys: bool = False) -> Iterator[str]:
    """Yield the texts and numbers of a JSON value as texts; `with_keys` also yields each key before its value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key,) if with_keys else ()
            yield from leaves_of(item, with_keys)
    elif isinstance(value, list):
        for item in value:
            yield from leaves_of(item, with_keys)
    else:
        yield str(value)


def _date(match: re.Match) -> tuple[int | None, int, int] | None:
    months = [number for number, name in enumerate(_MONTHS, start=1) if name.startswith(match["m"][:3])]
    month = months[0] if months else int(match["m"])
    year, day = int(match["y"]) if match["y"] else None, int(match["d"])
    return (year, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None


def _multiple(match: re.Match) -> float:
    return _MULTIPLES.get((match[2] or match[3] or "").lower(), 1)


_FORMS = (  # (kind, pattern, value of a match) in reading order
    ("url", _URL, lambda match: match.group().rstrip(".,;:!?*")),
    ("citation", _CITATION, lambda match: match[1] or match[2]),
    *(("date", pattern, _date) for pattern in _DATES),
    ("hours", HOURS, lambda match: (minutes_of(match[1]), minutes_of(match[2]))),
    ("clock", CLOCK, lambda match: minutes_of(match[1])),
    ("service", SERVICE_NUMBER, lambda match: match[1]),
    ("percentage", _PERCENTAGE, lambda match: float(match[1])),
    ("price", PRICE, price_of),
    ("price", _OTHER_MONEY, price_of),
    ("duration", DURATION, duration_of),
    ("duration", _WHOLE_HOURS, lambda match: 60 * float(match[1])),
    ("distance", _DISTANCE, lambda match: float(match[1]) * (1000 if match[2] else 1)),
    ("number", _NUMBER, lambda match: float(match[1].replace(",", "")) * _multiple(match)),
)


def _slack(kind: str, match: re.Match, value: Any) -> float:
    """Return the tolerance of a number; see `Fact`."""
    if not isinstance(value, float | int) or kind == "clock":
        return 0.0
    if _APPROXIMATE.search(match.string[max(0, match.start() - 16) : match.start()]):
        return 0.1 * value
    decimals, unit = re.search(r"\.(\d+)", match.group()), 1.0
    if match.re is _WHOLE_HOURS:
        unit = 60
    elif kind == "distance" and match[2]:
        unit = 1000
    elif kind == "number":
        unit = _multiple(match)
    return 0.5 * unit * 10.0 ** -(len(decimals[1]) if decimals else 0)


def _clock_of_shared(match: re.Match) -> str:
    """Give the start of a range the am or pm of its end; the other one if the start would then be after the end."""
    if not 1 <= int(match[1]) <= 12:
        return match.group()
    start, end = (60 * (int(match[at]) % 12) + int(match[at + 1] or 0) for at in (1, 3))
    half = (match[5].lower() == "p") == (start <= end)
    return f"{start // 60 + 12 * half:02d}:{start % 60:02d}"


def _clock_of_colon(match: re.Match) -> str:
    """Rewrite 下午2:00-4:00 as 14:00-16:00; a range may end on the next day."""
    start = _after_noon(match[1], int(match[2]))
    if not match[4]:
        return f"{start:02d}:{match[3]}"
    end = _after_noon(match[1], int(match[5]))
    end = int(match[5]) if (end, match[6]) < (start, match[3]) else end
    return f"{start:02d}:{match[3]}{match[4]}{end:02d}:{match[6]}"


def _after_noon(word: str, hour: int) -> int:
    return hour + 12 * (hour < (4 if word == "中午" else 12))
