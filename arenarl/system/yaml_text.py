"""Strict YAML for configs and prompts: a value is read as it is written, or refused in one line.

YAML 1.1 reads `12:30:45` as 45045, `010` as 8, `no` as false and a date as an object. Here these are text, and keys are
always text. Numbers are -1, 0.5 and 2e-5; booleans are true and false. Duplicate keys, tags and invalid Unicode are
refused, and so is a file with too many values or too much nesting. An alias counts as its whole content, so neither a
circle nor nested aliases can exhaust memory.
"""

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
MAX_DEPTH = 32  # our configs need 6
MAX_VALUES = 20_000  # our longest file has about 700
_PLAIN = {  # type -> pattern of unquoted text of this type, and its possible first characters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"0|-?[1-9]\d{0,999}", list("-0123456789")),
    "float": (
        r"-?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
_LINE_ENDS = {"\x85", "\u2028", "\u2029"}  # PyYAML writes them unescaped and reads them as spaces


class _Reader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list] = {}  # drops the resolvers of YAML 1.1

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = self.values = 0
        self.sizes: dict[str, int] = {}  # anchor -> number of values, once they are read

    def compose_node(self, parent, index):
        event = self.peek_event()
        name = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if name in self.anchors and name not in self.sizes:
                raise _refusal(event, f"*{name} is inside its own anchor")
            self._count(event, self.sizes.get(name, 1))
            return super().compose_node(parent, index)
        if event.tag is not None:
            raise _refusal(event, "tags (!) are not read")
        if self.depth == MAX_DEPTH:
            raise _refusal(event, f"brackets or sections more than {MAX_DEPTH} deep")
        before = self.values
        self._count(event, 1)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if name is not None:
            self.sizes[name] = self.values - before
        return node

    def compose_mapping_node(self, anchor):
        node, names = super().compose_mapping_node(anchor), set()
        for number, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal(key, "a list or a mapping as a key")
            if key.value in names:
                raise _refusal(key, f"{key.value!r} is named twice")
            names.add(key.value)
            if key.tag != _TAG + "merge":
                node.value[number] = yaml.ScalarNode(self.DEFAULT_SCALAR_TAG, key.value, key.start_mark), value
        return node

    def flatten_mapping(self, node):
        own = [pair for pair in node.value if pair[0].tag != _TAG + "merge"]
        names = {key.value for key, _ in own}
        super().flatten_mapping(node)
        # in the order of the text
        node.value = [pair for pair in node.value if pair[0].value not in names] + own

    def construct_yaml_str(self, node):
        try:  # JSON writes characters beyond 16 bits as two surrogates
            return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise _refusal(node, "half a Unicode character") from error

    def _count(self, event: yaml.Event, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise _refusal(event, f"more than {MAX_VALUES} values")


class _Writer(yaml.SafeDumper):
    """Quotes text that `_Reader` or YAML 1.1 would read as another type."""

    def represent_text(self, text):
        return self.represent_scalar(_TAG + "str", text, '"' if _LINE_ENDS.intersection(text) else None)


for _name, (_pattern, _first) in _PLAIN.items():
    for _side in (_Reader, _Writer):
        _side.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z", re.ASCII), _first)
_Reader.add_constructor(_TAG + "str", _Reader.construct_yaml_str)
_Writer.add_representer(str, _Writer.represent_text)


def read_yaml(text: str) -> Any:
    """Return the plain values of a YAML text; keys are text. Raises a one-line ValueError for other text.

    >>> read_yaml("{a: 2e-5, b: [010, 12:30:45, 1_000, no, 2026-01-01], 3: true}")
    {'a': 2e-05, 'b': ['010', '12:30:45', '1_000', 'no', '2026-01-01'], '3': True}
    """
    try:
        return yaml.load(text, Loader=_Reader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"line {mark.line + 1}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def write_yaml(values: Any) -> str:
    """Return YAML that reads back to equal values, here and by the rules of YAML 1.1."""
    return yaml.dump(values, Dumper=_Writer, allow_unicode=True, sort_keys=False)


def _refusal(place: yaml.Event | yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
