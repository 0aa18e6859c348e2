"""Judge prompts: the official ones, read at run time from the user's copy or an installed package, or ours from
configs/prompts/benchmarks_en.yaml.

Nothing official is kept here: texts stand in Python files of others, which are parsed and never imported or run. A
figure says which it was made with, and by ours says so.
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

# what openai/simple-evals tells its graders
SIMPLE_EVALS_SYSTEM = ("sampler/chat_completion_sampler.py", "OPENAI_SYSTEM_MESSAGE_API")
_LEVELS_UP = 4  # from the file with the items to the top of the official repository, at most
_MOST_CHARACTERS = 400_000  # of what a prompt of ours quotes


@dataclass(frozen=True)
class Edition:
    """One place of official prompts: by what each is for, (file, name of the constant or function; "" is the whole
    file, with $INST$ and $RESPONSE$).

    Files are those of the benchmark's own repository, or of `package`.
    """

    places: dict[str, tuple[str, str]]
    package: str | None = None


@dataclass(frozen=True)
class Prompts:
    """Texts by what they are for; `source` names where they come from."""

    texts: dict[str, str]
    source: str
    is_official: bool

    @property
    def hash(self) -> str:
        texts = "\0".join(f"{name}\0{text}" for name, text in sorted(self.texts.items()))
        return hashlib.sha256(texts.encode()).hexdigest()[:12]

    def messages(self, name: str, language: str = "en", **fields: object) -> list[dict[str, str]]:
        """What a judge is asked: the filled text, behind the system message if there is one."""
        system = self.texts.get("system", "").strip()
        asked = {"role": "user", "content": self.fill(name, language, **fields)}
        return [{"role": "system", "content": system}, asked] if system else [asked]

    def fill(self, name: str, language: str = "en", **fields: object) -> str:
        """The text for this purpose, in the language if there is one. Official texts have the fields as they are, but
        for characters that nobody sees and tokens of control; in ours each is quoted line by line too, so that a
        response cannot speak as the one who asks."""
        quote = quotable if self.is_official else partial(quoted, limit=_MOST_CHARACTERS)
        shown = {key: quote(value) if isinstance(value, str) else value for key, value in fields.items()}
        return self._filled(f"{name}_{language}" if self.texts.get(f"{name}_{language}") else name, shown)

    def query(self, **fields: str) -> str:
        """What the policy is asked: the fields as they are."""
        return self._filled("query", fields)

    def _filled(self, name: str, fields: dict[str, object]) -> str:
        try:
            return self.texts[name].format(**fields)
        except (KeyError, IndexError, ValueError) as error:
            wrong = f"the prompt {name} of {self.source} has a placeholder that is not known: {error}"
            raise UserError(f"{wrong}; take another version of it") from error


def find_prompts(name: str, editions: tuple[Edition, ...], path: Path) -> Prompts:
    """The first edition that is there whole, in a copy of the official repository around `path` or in an installed
    package; else ours.

    What no edition has, such as what the policy is told, is ours.
    """
    ours = prompt_texts("benchmarks", "en")[name]
    for edition in editions:
        for folder, source in _folders(edition, path):
            texts = {purpose: _text_in(folder / file, name) for purpose, (file, name) in edition.places.items()}
            if None not in texts.values():
                return Prompts(ours | texts, source, is_official=True)
    return Prompts(dict(ours), "ours", is_official=False)


def package_folder(package: str) -> Path | None:
    """Where an installed package lies; it is not imported."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _folders(edition: Edition, path: Path) -> Iterator[tuple[Path, str]]:
    """(folder, what to call it)."""
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
    """The whole file, or the text that a Python file gives this name or that a function of this name returns."""
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
            returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
            return _literal(returned[-1]) if returned else None
    return None


def _literal(node: ast.expr) -> str | None:
    """A text as written; an f-string with 0 for what it inserts; either with .strip() behind it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        case ast.Call(func=ast.Attribute(attr="strip", value=value), args=[]):
            text = _literal(value)
            return text and text.strip()
    return None
