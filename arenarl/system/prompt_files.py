"""Texts of prompts: ours in configs/prompts, and the user's, which replace them (`prompts.folder`).

    python -m arenarl.system.prompt_files FOLDER

checks a folder, and lists the texts that it lacks, for which ours are used. The user's file has the name of our file
and replaces any of its texts. A process has one folder; `use_folder` sets it from the config.
"""

import argparse
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from string import Formatter

from arenarl.system.atomic_files import hash_files
from arenarl.system.errors import UserError, did_you_mean, missing, one_line, run_cli
from arenarl.system.repository import CONFIGS
from arenarl.system.user_input import text_of_file
from arenarl.system.yaml_text import read_yaml

PROMPTS = CONFIGS / "prompts"
OWN_PROMPT = "prompts.folder's "  # before the name of a user's file, where hashes of several kinds stand together
_NAME = re.compile(r"(?<!\{)\{(\w+)\}")  # a placeholder; an example of JSON has quotes within its braces
_ENDS = (".yaml", ".yml", ".md")
_OTHER_ENDS = ("", ".txt", ".text", ".json", ".jsonl", ".markdown")  # of a prompt that was saved in another format
_folder: Path | None = None


def use_folder(folder: str | Path | None) -> None:
    """Use the user's texts in `folder` from now on, in this process; None for ours alone.
    Raises UserError for a file or a text with a name that ours do not have, for wrong placeholders, and for a folder
    without prompts."""
    global _folder
    if folder is not None:
        _check_folder(Path(folder))
    _folder = None if folder is None else Path(folder)
    prompt_texts.cache_clear()


@lru_cache
def prompt_texts(name: str, language: str) -> dict[str, str]:
    """Return the texts of <name>_<language>.yaml, else of the English file; the user's texts replace ours."""
    file = f"{name}_{language}.yaml" if (PROMPTS / f"{name}_{language}.yaml").is_file() else f"{name}_en.yaml"
    own = _folder / file if _folder else None
    return _read(PROMPTS / file) | (_read(own) if own and own.is_file() else {})


def prompt_file(path: Path) -> Path:
    """Return the user's file that replaces one of ours, such as a world's rules; return any other path unchanged."""
    own = _folder / path.name if _folder else None
    return own if own and own.is_file() and path.resolve().parent == PROMPTS.resolve() else path


def prompt_hashes(folder: str | None) -> dict[str, str]:
    """Return the hash of each of the user's files in `folder`; empty without a folder."""
    return {path.name: hash_files([path])[:12] for path in _files(folder)}


def missing_texts(folder: Path) -> dict[str, list[str]]:
    """Return the names of the texts that the folder lacks, by file. The text of a world's rules has the file's name."""
    files, gaps = {path.name: path for path in _files(folder)}, {}
    for ours in _replaceable():
        own_names = _names(files[ours.name]) if ours.name in files else ()
        if names := [name for name in _names(ours) if name not in own_names]:
            gaps[ours.name] = names
    return gaps


def _replaceable() -> list[Path]:
    """Return our files that a folder may replace; the benchmarks' prompts are official."""
    return sorted(path for path in PROMPTS.iterdir() if not path.name.startswith("benchmarks"))


def _names(path: Path) -> Collection[str]:
    """Return the names of a file's texts; a world's rules are one text with the file's name."""
    return _read(path).keys() if path.suffix == ".yaml" else [path.name]


def _files(folder: str | Path | None) -> list[Path]:
    """Return the prompt files of a folder; none without a folder."""
    return [] if folder is None else [path for path in _entries(Path(folder)) if path.suffix.lower() in _ENDS]


def _entries(folder: Path) -> list[Path]:
    """Return all files and folders in a folder. Raises UserError if it cannot be listed."""
    remedy = "name the folder of your prompts"
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError as error:
        raise UserError(f"prompts.folder={missing(folder, f'; {remedy}')}") from error
    except NotADirectoryError as error:
        raise UserError(f"prompts.folder={folder} is a file, not a folder; {remedy}") from error
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise UserError(f"prompts.folder={one_line(folder)} cannot be read: {one_line(error)}; {remedy}") from error


def _check_folder(folder: Path) -> None:
    """Raise UserError for a folder without prompt files, and for a file that does not fit ours of the same name.

    A file with the name of one of ours and a wrong ending, such as .txt, is refused too: it would not be read.
    """
    files = _files(folder)
    present = {path.stem for path in files}
    for path in _entries(folder):
        stem = path.name.partition(".")[0]
        is_meant = path.suffix.lower() in _OTHER_ENDS and path.is_file() and stem not in present
        if path in files or (is_meant and stem in {ours.stem for ours in _replaceable()}):
            _check(path)
    if not files:
        raise UserError(f"prompts.folder={folder} has no prompt file; name your files as in {PROMPTS}")


def _read(path: Path) -> dict[str, str]:
    text = text_of_file(path)
    try:
        texts = read_yaml(text)
    except ValueError as error:
        raise UserError(f"{path}: not YAML ({one_line(error)}); write a text for each name, as in {PROMPTS}") from error
    if not isinstance(texts, dict):
        raise UserError(f"{path}: must hold names with texts, as in {PROMPTS}")
    return texts


def _check(path: Path) -> None:
    """Raise UserError for a file that does not fit ours of the same name."""
    known = [ours.name for ours in _replaceable()]
    if path.name not in known:
        raise UserError(f"{path}: no prompt file has this name{did_you_mean(path.name, known)}")
    if path.suffix == ".md":
        if not text_of_file(path).strip():
            raise UserError(f"{path} is empty; delete it to use ours")
        return
    ours = _read(PROMPTS / path.name)
    for name, text in _read(path).items():
        if name not in ours:
            raise UserError(f"{path}: unknown text {name}{did_you_mean(str(name), ours)}")
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{path}: {name} must be a text; leave it out to use ours")
        if problem := _misfit(text, ours[name]):
            raise UserError(f"{path}: {name} {problem}")


def _misfit(text: str, ours: str) -> str:
    """Return the problem of a text's placeholders, or "". A text without placeholders may hold any brace."""
    names = set(_NAME.findall(ours))
    if not names:
        return ""
    listed, remedy = ", ".join(f"{{{name}}}" for name in sorted(names)), "write {{ and }} for braces"
    try:
        placeholders = set(_placeholders(text))
    except ValueError as error:
        return f"cannot be filled in ({error}); {remedy}"
    if unknown := sorted(placeholders - names):
        return f"has a placeholder {{{unknown[0]}}}, but only {listed} can be filled in; {remedy}"
    if missing_names := sorted(names - placeholders):
        return f"lacks the placeholder {{{missing_names[0]}}}; it must have {listed}"
    return ""


def _placeholders(text: str) -> Iterator[str]:
    """Yield a text's placeholders, with their conversions and formats, which ours do not have.
    Raises ValueError for a brace without its partner."""
    for _, name, form, conversion in Formatter().parse(text):
        if name is not None:
            yield name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")


def fill(text: str, words: Mapping[str, object]) -> str:
    """Fill in a text's placeholders. Without words nothing is filled in, and braces stay as they are."""
    return text.format(**words) if words else text


def main() -> None:
    parser = argparse.ArgumentParser(description="List the texts for which a folder of prompts has none.")
    parser.add_argument("folder", type=Path, help="as in prompts.folder")
    folder = parser.parse_args().folder
    use_folder(folder)
    files, gaps = _files(folder), missing_texts(folder)
    for path in files:
        print(f"{path.name}: {'some texts' if path.name in gaps else 'complete'}")
    for path in _entries(folder):
        if path not in files:
            print(f"not read: {one_line(path.name)}")
    for file, names in gaps.items():
        print("missing, ours is used:", file if names == [file] else f"{file}: {', '.join(names)}")


if __name__ == "__main__":
    run_cli(main)
