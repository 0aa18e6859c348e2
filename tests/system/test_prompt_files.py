"""A user's own prompts: files in place of ours, text by text; what does not fit is refused with file and name."""

import re

import pytest
import yaml

from arenarl.config.command_line import parse_arguments
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.prompts import prompt_hash
from arenarl.system import prompt_files
from arenarl.system.errors import UserError
from arenarl.system.prompt_files import (
    PROMPTS,
    fill,
    missing_texts,
    prompt_file,
    prompt_hashes,
    prompt_texts,
    use_folder,
)  # fmt: skip

FILES = sorted(path for path in PROMPTS.glob("*.yaml") if not path.name.startswith("benchmarks"))


@pytest.fixture(autouse=True)
def ours():
    yield
    use_folder(None)


def write(folder, name, **texts):
    (folder / name).write_text(yaml.safe_dump(texts, allow_unicode=True), encoding="utf-8")


def test_every_text_of_ours_can_be_replaced_alone_and_keeps_its_placeholders(tmp_path):
    for path in FILES:
        name, language = path.stem.rsplit("_", 1)
        own = {}
        for key, text in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            wanted = sorted(set(re.findall(r"(?<!\{)\{(\w+)\}", text)))
            own[key] = f"my {key} {' '.join(f'{{{word}}}' for word in wanted)}" + (" {{}}" if wanted else " {}")
        for key, text in own.items():
            write(tmp_path, path.name, **{key: text})
            use_folder(tmp_path)
            texts = prompt_texts(name, language)
            assert texts == yaml.safe_load(path.read_text(encoding="utf-8")) | {key: text}
            words = dict.fromkeys(re.findall(r"(?<!\{)\{(\w+)\}", text), "x")
            assert fill(texts[key], words).endswith(" {}")
        write(tmp_path, path.name, **own)
        assert path.name not in missing_texts(tmp_path)


@pytest.mark.parametrize(("name", "texts", "says"), [
    ("judge_en.yaml", {"choose": "Pick {winners}."}, "choose lacks the placeholder {count}; it must have {count}, "),
    ("judge_en.yaml", {"choose": "{winners} {count} {query}"}, "choose has a placeholder {query}, but only {count}, "),
    ("judge_en.yaml", {"choose": "{winners} {count} {winners:>9}"}, "placeholder {winners:>9}"),
    ("judge_en.yaml", {"choose": '{winners} {count} {"winners": [1]}'}, "write {{ and }} for braces"),
    ("judge_en.yaml", {"again": "{error} }"}, "again cannot be filled in (Single '}' encountered"),
    ("judge_en.yaml", {"chose": "x"}, "unknown text chose; did you mean choose?"),
    ("judge_en.yaml", {"system": " "}, "system must be a text; leave it out to use ours"),
    ("judge_en.yaml", {"system": 3}, "system must be a text; leave it out to use ours"),
    ("judge_eng.yaml", {"system": "x"}, "no prompt file has this name; did you mean judge_en.yaml?"),
    ("judge_en.yml", {"system": "x"}, "did you mean judge_en.yaml?"),
    ("Judge_en.YAML", {"system": "x"}, "did you mean judge_en.yaml?"),
    ("benchmarks_en.yaml", {"again": "{error}"}, "no prompt file has this name"),
    ("judge_en.txt", {"system": "x"}, "did you mean judge_en.yaml?"),
    ("judge_en.yaml.txt", {"system": "x"}, "did you mean judge_en.yaml?"),
    ("judge_en", {"system": "x"}, "did you mean judge_en.yaml?"),
    ("babyai.markdown", {"system": "x"}, "did you mean babyai.md?"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_file_and_name(name, texts, says, tmp_path, monkeypatch):
    write(tmp_path, name, **texts)
    monkeypatch.setattr("sys.argv", ["x", "--config", "configs/quickstart.yaml", "--set", f"prompts.folder={tmp_path}"])
    with pytest.raises(UserError) as refused:
        parse_arguments("x")
    assert says in str(refused.value) and str(tmp_path / name) in str(refused.value) and "\n" not in str(refused.value)


def test_a_folder_that_is_missing_not_text_or_without_prompts_is_refused(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("x")
    for folder, says in {
        "nowhere": "does not exist",
        "notes.txt": "is a file, not a folder",
        "": "has no prompt file",
    }.items():
        with pytest.raises(UserError, match=f"^prompts.folder=.*{says}"):
            use_folder(tmp_path / folder)
        monkeypatch.setattr("sys.argv", ["prompt_files", str(tmp_path / folder)])
        with pytest.raises(UserError, match=f"^prompts.folder=.*{says}"):
            prompt_files.main()
    (tmp_path / "babyai.md").write_bytes(b"\xff")
    with pytest.raises(UserError, match="babyai.md is not UTF-8 text"):
        use_folder(tmp_path)


BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}\n" for n in range(1, 9))


@pytest.mark.parametrize(("text", "says"), [
    ("system: " + "[" * 50_000, "more than 32 deep"),
    (BOMB, "more than 20000 values"),
    ("a: [", "judge_en.yaml: not YAML"),
    ("a: &a [*a]", "its own anchor"),
    ("system: x\nsystem: y", "'system' is named twice"),
    ("again: 2026-99-99", "lacks the placeholder"),
    ("system: \udcff", "not UTF-8"),
    (None, "is a folder, not a file"),
    ("judge_en.yaml", "cannot be read"),
])  # fmt: skip
def test_a_hostile_file_is_refused_in_one_line(text, says, tmp_path):
    path = tmp_path / "judge_en.yaml"
    if text is None:
        path.mkdir()
    elif text == path.name:
        path.symlink_to(text)
    else:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=says):
        use_folder(tmp_path)


def test_worlds_and_hashes_follow_the_files(tmp_path, capsys, monkeypatch):
    rubric = domain_rubric("travel", "en")
    before = prompt_hash(rubric, "en")
    write(tmp_path, "judge_en.yaml", compare="Compare.")
    (tmp_path / "babyai.md").write_text("Rules.", encoding="utf-8")
    (tmp_path / "judge_en.yaml.bak").write_text("a backup beside the file itself")
    (tmp_path / "en").mkdir()
    use_folder(tmp_path)
    assert prompt_file(PROMPTS / "babyai.md") == tmp_path / "babyai.md"
    assert prompt_file(PROMPTS / "textcraft.md") == PROMPTS / "textcraft.md"
    assert prompt_file(tmp_path.parent / "babyai.md") == tmp_path.parent / "babyai.md"
    hashes = prompt_hashes(str(tmp_path))
    assert set(hashes) == {"judge_en.yaml", "babyai.md"} and prompt_hash(rubric, "en") != before
    write(tmp_path, "judge_en.yaml", compare="Compare!")
    assert prompt_hashes(str(tmp_path))["judge_en.yaml"] != hashes["judge_en.yaml"]
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path)])
    prompt_files.main()
    printed = capsys.readouterr().out
    assert "judge_en.yaml: some texts\n" in printed and "missing, ours is used: textcraft.md\n" in printed
    assert re.search(r"missing, ours is used: judge_en.yaml: system, .*choose", printed)
    assert "babyai.md: complete" in printed
    assert "not read: en\nnot read: judge_en.yaml.bak\n" in printed
