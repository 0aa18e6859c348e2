"""Judge prompts: official ones from the user's copy or an installed package, else configs/prompts/benchmarks_en.yaml.

This repository holds no official text. The texts are in other projects' Python files, which are parsed at run time and
never imported. A figure names its prompt, and has a label if the prompt is ours.
"""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from arenarl.llm.prompts import prompt_texts, quotable, quoted
from arenarl.system.errors import UserError
from arenarl.system.user_input import text_of_file

# system message of the graders in openai/simple-evals
SIMPLE_EVALS_SYSTEM = ("sampler/chat_completion_sampler.py", "OPENAI_SYSTEM_MESSAGE_API")
_LEVELS_UP = 4  # most folders between the file of items and the top of the official repository
_MOST_CHARACTERS = 400_000  # maximum length of a text that our prompts quote


@dataclass(frozen=True)
class Edition:
    """A source of official prompts."""

    places: dict[str, tuple[str, str]]  # purpose -> (file, constant or function; "": whole file, $INST$ and $RESPONSE$)
    package: str | None = None  # None: the files are in the benchmark's own repository


@dataclass(frozen=True)
class Prompts:
    """The prompts of one benchmark."""

    texts: dict[str, str]  # by purpose
    source: str
    is_official: bool

    @property
    def hash(self) -> str:
        texts = "\0".join(f"{name}\0{text}" for name, text in sorted(self.texts.items()))
        return hashlib.sha256(texts.encode()).hexdigest()[:12]

    def messages(self, name: str, language: str = "en", **fields: object) -> list[dict[str, str]]:
        """Return the judge's messages: the system message if there is one, then the filled text."""
        system = self.texts.get("system", "").strip()
        user = {"role": "user", "content": self.fill(name, language, **fields)}
        return [{"role": "system", "content": system}, user] if system else [user]

    def fill(self, name: str, language: str = "en", **fields: object) -> str:
        """Fill the text for a purpose, in the language if there is such a text. Invisible characters and control tokens
        are removed from the fields. In our texts each line of a field is also quoted, so that a response cannot pose as
        part of the prompt."""
        quote = quotable if self.is_official else partial(quoted, limit=_MOST_CHARACTERS)
        values = {key: quote(value) if isinstance(value, str) else value for key, value in fields.items()}
        return self._format(f"{name}_{language}" if self.texts.get(f"{name}_{language}") else name, values)

    def query(self, **fields: str) -> str:
        """Return the policy's query, with the fields unchanged."""
        return self._format("query", fields)

    def _format(self, name: str, fields: dict[str, object]) -> str:
        try:
            return self.texts[name].format(**fields)
        except (KeyError, IndexError, ValueError) as error:
            problem = f"the prompt {name} of {self.source} has an unknown placeholder: {error}"
            raise UserError(f"{problem}; take another version of it") from error


def find_prompts(name: str, editions: tuple[Edition, ...], path: Path) -> Prompts:
    """Return the first complete edition from the official repository around `path` or an installed package, else our
    prompts. Texts that the edition lacks, such as the policy's query, are always ours."""
    ours = prompt_texts("benchmarks", "en")[name]
    for edition in editions:
        for folder, source in _folders(edition, path):
            texts = {purpose: _text_in(folder / file, name) for purpose, (file, name) in edition.places.items()}
            if None not in texts.values():
                return Prompts(ours | texts, source, is_official=True)
    return Prompts(dict(ours), "ours", is_official=False)


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if it is missing."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _folders(edition: Edition, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield (folder, name of the source)."""
    if edition.package is None:
        start = path.resolve()
        for folder in [start, *start.parents][: _LEVELS_UP + 1]:
            yield folder, "the official repository"
    elif folder := package_folder(edition.package):
        name = edition.package.replace("_", "-")
        try:
            yield folder, f"{name} {version(name)}"
        except PackageNotFoundError:
            yield folder, name


def _text_in(file: Path, name: str) -> str | None:
    """Return the whole file, or the text of a constant or a function in a Python file; None if there is none."""
    if not file.is_file():
        return None
    text = text_of_file(file)
    if not name:
        text = text.replace("{", "{{").replace("}", "}}")
        return text.replace("$INST$", "{query}").replace("$RESPONSE$", "{response}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name in [getattr(target, "id", None) for target in node.targets]:
            return _literal(node.value)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
            return _literal(returned[-1]) if returned else None
    return None


def _literal(node: ast.expr) -> str | None:
    """Return the text of a string or f-string, also with .strip(); inserted values become 0. None for other code."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        case ast.Call(func=ast.Attribute(attr="strip", value=value), args=[]):
            text = _literal(value)
            return text and text.strip()
    return None
