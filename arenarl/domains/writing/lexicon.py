"""The closed vocabulary of the embedded writing tasks, in English and Chinese: parts of queries, and sentences of the
scripted writer.

All sentences of a language have the same length, so the number of sentences fixes the length in words (English) or
characters (Chinese). Words to use or avoid occur in none of them. Marker words of a tone occur only in that tone's
sentences. Tests check these three properties.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A kind of fact. `form` has one {} for an entry of `numbers`; the first entry is the careless writer's guess."""

    section: str
    form: str
    sentence: str  # with one {} for the fact
    numbers: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """A regular expression for any fact of this kind."""
        number = re.sub(r"\d+", r"\\d{1,6}", self.numbers[0])
        return rf"(?<!\d){self.form.format(number)}(?!\d)"


@dataclass(frozen=True)
class Lexicon:
    """`tones` maps each tone to its sentences, `marks` to its marker words; `unit` is the length of a sentence."""

    kinds: Mapping[str, str]  # subtask → its name in a query
    subjects: tuple[str, ...]
    occasions: tuple[str, ...]
    facts: tuple[Fact, ...]
    words: tuple[str, ...]
    with_word: tuple[str, ...]
    tones: Mapping[str, tuple[str, ...]]
    marks: Mapping[str, tuple[str, ...]]
    title: str  # with {} for a subject and {} for an occasion
    unit: int
    round_to: int  # the requested length is a multiple of it
    title_length: int
    comma: str
    plan: str  # the writer's thought on length, with one {}
    no_word: str
    no_repeats: str
    write: str


def _numbers(typical: str, *ranges: range) -> tuple[str, ...]:
    return (typical, *(str(number) for part in ranges for number in part if str(number) != typical))


_CLOCKS = ("10:00", *(f"{hour:02d}:{minute}" for hour in range(11, 21) for minute in ("15", "30", "45")))

_EN = Lexicon(
    kinds={"Notice": "notice", "Letter": "letter", "Report": "report", "Speech": "speech"},
    subjects=("kite", "book", "tea", "film", "plant", "clock", "chess", "boat", "stamp", "music"),
    occasions=("fair", "market", "evening", "show", "contest", "meeting"),
    facts=(
        Fact("Place", "hall {}", "We meet today in {}.", _numbers("1", range(10, 60))),
        Fact("Time", "{}", "The doors will open at {}.", _CLOCKS),
        Fact("Price", "{} yuan", "A seat costs just {}.", _numbers("20", range(11, 90))),
        Fact("Way", "line {}", "You get here by {}.", _numbers("1", range(11, 90))),
        Fact("Room", "{} people", "There is room for {}.", _numbers("100", range(110, 900, 10))),
        Fact("Day", "May {}", "It takes place on {}.", _numbers("1", range(10, 29))),
    ),
    words=(
        "lantern", "bread", "river", "garden", "violin", "ladder", "mirror", "basket", "feather", "bridge", "button",
        "carpet", "window", "pepper", "rocket", "saddle", "turtle", "wallet", "zipper", "magnet", "helmet", "pillow",
        "hammer", "needle",
    ),
    with_word=("Do not forget the old {}.", "Everyone will be given a {}.",
               "We will talk about the {}.", "There is also a little {}."),
    tones={
        "warm": (
            "Dear friends, we think of you.", "You are all warmly welcome here.", "We would gladly share this day.",
            "It comes straight from the heart.", "Bring your loved ones with you.", "There is a hug for everyone.",
            "We have missed you so tenderly.", "Cozy evenings are the best ones.",
        ),
        "formal": (
            "You are hereby informed of this.", "We respectfully ask for your presence.",
            "All rules have been duly approved.", "The undersigned will take all questions.",
            "Attendance shall be recorded in writing.", "The committee thanks you in advance.",
            "Registration is required of all visitors.", "Further provisions remain in full force.",
        ),
        "lively": (
            "Hurray, we can hardly wait now!", "Wow, this will be really big!", "We dance until the floor shakes!",
            "Come and have fun with us!", "You will laugh all evening long!", "Let us cheer as one crowd!",
            "It gets crazy after the start!", "Nobody sits still at this party!",
        ),
        "solemn": (
            "We honour those who came before.", "Their memory will stay with us.", "A moment of silence will follow.",
            "This is a solemn hour indeed.", "We bow with dignity and calm.", "What they gave us is eternal.",
            "Let us mourn and go on.", "Candles burn through the long vigil.",
        ),
    },
    marks={
        "warm": ("dear", "warmly", "gladly", "heart", "loved", "hug", "tenderly", "cozy"),
        "formal": ("hereby", "respectfully", "duly", "undersigned", "shall", "committee", "registration", "provisions"),
        "lively": ("hurray", "wow", "dance", "fun", "laugh", "cheer", "crazy", "party"),
        "solemn": ("honour", "memory", "silence", "solemn", "dignity", "eternal", "mourn", "vigil"),
    },
    title="The {} {}", unit=6, round_to=5, title_length=3, comma=", ", plan="{} each", no_word="no {}",
    no_repeats="no repeats", write="write",
)  # fmt: skip

_ZH = Lexicon(
    kinds={"Notice": "通知", "Letter": "信", "Report": "报告", "Speech": "演讲稿"},
    subjects=("风筝", "图书", "茶艺", "电影", "花草", "钟表", "象棋", "龙舟", "邮票", "音乐"),
    occasions=("集市", "市场", "晚会", "展览", "比赛", "聚会"),
    facts=(
        Fact("地点", "{}号厅", "我们在{}里见面。", _numbers("1", range(10, 60))),
        Fact("时间", "{}", "大门将在{}打开。", _CLOCKS),
        Fact("票价", "{}元", "每张门票一共是{}。", _numbers("20", range(11, 90))),
        Fact("路线", "{}路车", "请各位乘{}前来。", _numbers("1", range(11, 90))),
        Fact("座位", "{}个座位", "会场里有{}。", _numbers("100", range(110, 900, 10))),
        Fact("日期", "5月{}日", "活动于{}举行。", _numbers("1", range(10, 29))),
    ),
    words=(
        "灯笼", "面包", "小河", "花园", "提琴", "梯子", "镜子", "篮子", "羽毛", "石桥", "纽扣", "地毯",
        "窗户", "胡椒", "火箭", "马鞍", "乌龟", "钱包", "拉链", "磁铁", "头盔", "枕头", "锤子", "银针",
    ),
    with_word=("请大家都不要忘记{}。", "每个人都将会得到{}。", "我们到时还会谈谈{}。", "旁边还有一个小的{}。"),
    tones={
        "亲切": (
            "亲爱的朋友们我们想你。", "热烈欢迎你们都来这里。", "我们很乐意与你们分享。", "这些话全都发自我内心。",
            "请把你的家人也带过来。", "每个人都能得到个拥抱。", "我们一直在温柔地等你。", "温馨的夜晚总是最好的。",
        ),
        "正式": (
            "特此向各位通知此事项。", "谨请各位务必准时出席。", "各项规定均已依法通过。", "如有疑问请向本会垂询。",
            "出席情况均将予以登记。", "组委会预先向各位致谢。", "凡来访者均须办理手续。", "其余条款仍然继续有效。",
        ),
        "活泼": (
            "哇哦这次真的超级棒呀！", "耶我们都等不及要开始！", "我们跳舞跳到地板发抖！", "快来和我们一起玩耍吧！",
            "你整个晚上都会哈哈笑！", "让我们一起大声欢呼吧！", "开始之后大家都会疯狂！", "派对上谁也坐不住的啦！",
        ),
        "庄重": (
            "我们向先辈们致以敬意。", "他们的事迹将永远铭记。", "接下来请全体肃立默哀。", "这确是一个肃穆的时刻。",
            "我们怀着庄严之心鞠躬。", "他们留给我们的是永恒。", "让我们缅怀并继续前行。", "长夜里烛光静静地守候。",
        ),
    },
    marks={
        "亲切": ("亲爱", "热烈", "乐意", "内心", "家人", "拥抱", "温柔", "温馨"),
        "正式": ("特此", "谨请", "依法", "垂询", "予以", "组委会", "均须", "条款"),
        "活泼": ("哇哦", "耶", "跳舞", "玩耍", "哈哈", "欢呼", "疯狂", "派对"),
        "庄重": ("敬意", "铭记", "默哀", "肃穆", "庄严", "永恒", "缅怀", "烛光"),
    },
    title="{}{}", unit=10, round_to=10, title_length=4, comma="、", plan="每节{}句", no_word="不用{}",
    no_repeats="不重复", write="动笔",
)  # fmt: skip

LEXICONS = {"en": _EN, "zh": _ZH}


def length_of(text: str, language: str) -> int:
    """Return the number of words in an English text; in a Chinese text, of characters without blanks and punctuation.

    >>> length_of("The doors open at 14:30.", "en"), length_of("大门将在14:30打开。", "zh")
    (5, 10)
    """
    return sum(character.isalnum() for character in text) if language == "zh" else len(text.split())


def count_of(word: str, text: str, language: str) -> int:
    """Return how often a word occurs: in Chinese as characters, in English as a whole word in any case.

    >>> count_of("bread", "Bread, breadth", "en"), count_of("面包", "小面包。", "zh")
    (1, 1)
    """
    return text.count(word) if language == "zh" else len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))
