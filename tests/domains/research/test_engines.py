"""Folders of documents as an engine: what is read, how indexes are built, shared and replaced."""

import json
import multiprocessing
import os
import shutil
import signal
import time

import pytest
from sites import ARTICLE

from arenarl.domains.research import engines
from arenarl.domains.research.engines import open_folder, read_documents
from arenarl.system.errors import UserError


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "note.txt").write_text("Bergen is a port in the west.", encoding="utf-8")
    (folder / "deep" / "mara.md").write_text("intro\n\n## Mara Velden\n\nShe wrote The Long Tide.", encoding="utf-8")
    (folder / "pools.html").write_text(ARTICLE.format(""), encoding="utf-8")
    records = [
        {"url": "https://x.example/holm", "title": "Ada Holm", "text": "Ada Holm paints."},
        {"id": "7", "contents": '"Bo Lie"\nBo Lie sings.'},
    ]
    (folder / "dump.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n", encoding="utf-8")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (tmp_path / "private.txt").write_text("private", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "private.txt")  # out of the folder
    return folder


def test_every_type_of_document_gives_pages(folder):
    pages = {page.url: page for page in read_documents(folder, [])}
    titles = {"note.txt": "note", "deep/mara.md": "Mara Velden", "pools.html": "Tide pools"}
    titles |= {"https://x.example/holm": "Ada Holm", "dump.jsonl#2": "Bo Lie"}
    assert {url: page.title for url, page in pages.items()} == titles
    assert pages["dump.jsonl#2"].text == "Bo Lie sings." and "Login" not in pages["pools.html"].text


def test_files_without_a_page_are_reported_once(folder, tmp_path, capsys):
    (folder / "nothing.html").write_text("<html><body></body></html>", encoding="utf-8")
    (folder / "gbk.txt").write_bytes("西湖".encode("gbk"))
    for name in ("a.PDF", "deep/b.pdf", "LICENSE"):
        (folder / name).write_bytes(b"%PDF")
    open_folder(folder, 128, tmp_path / "indexes")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "files left out" in line)
    parts = line.partition("files left out: ")[2].split("; ")
    assert parts[0] == "2 of .pdf, an unknown type"
    assert parts[-1] == f"2 without a main text or not in UTF-8, such as {folder / 'gbk.txt'}"
    assert {part.partition(",")[0] for part in parts[1:-1]} == {"1 of .png", "1 of LICENSE"}
    open_folder(folder, 128, tmp_path / "indexes")
    assert "left out" not in "".join(capsys.readouterr())


def test_an_index_is_built_once_and_replaced_when_a_document_changes(folder, tmp_path, monkeypatch):
    before, name = open_folder(folder, 128, tmp_path / "indexes")
    with monkeypatch.context() as patch:
        patch.setattr(engines, "read_documents", None)  # not called
        again, same = open_folder(folder, 128, tmp_path / "indexes")
    assert name == same and again.search("tide", 9) == before.search("tide", 9) != []
    (folder / "note.txt").write_text("Bergen has a harbour and a funicular.", encoding="utf-8")
    after, other = open_folder(folder, 128, tmp_path / "indexes")
    assert name != other and not before.search("funicular", 1) and after.search("funicular", 1)[0][0].url == "note.txt"
    assert [path.name for path in (tmp_path / "indexes").glob("*/*") if path.is_dir()] == [other]


def test_a_kill_while_building_leaves_no_broken_index(folder, tmp_path):
    context = multiprocessing.get_context("fork")
    reading = context.Event()

    def build_slowly():
        engines.PageIndex.save = lambda index, target: reading.set() or time.sleep(60)
        open_folder(folder, 128, tmp_path / "indexes")

    process = context.Process(target=build_slowly)
    process.start()
    assert reading.wait(600)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [path.suffix for path in (tmp_path / "indexes").glob("*/*") if path.is_dir()] == [".partial"]
    assert open_folder(folder, 128, tmp_path / "indexes")[0].search("tide", 1)
    assert not list((tmp_path / "indexes").glob("*/*.partial"))


def test_concurrent_processes_share_one_index(folder, tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def search():
        results.put(open_folder(folder, 128, tmp_path / "indexes")[0].search("Who wrote The Long Tide?", 1)[0][0].title)

    processes = [context.Process(target=search) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=600) for _ in processes] == ["Mara Velden"] * 4
    for process in processes:
        process.join()


def test_a_folder_that_cannot_be_indexed_is_refused(folder, tmp_path):
    for line in ('{"title": "no text"}', '{"text": ["One.", "Two."]}', '["One."]', "One."):
        (folder / "dump.jsonl").write_text(f"\n{line}\n", encoding="utf-8")
        with pytest.raises(UserError, match="dump.jsonl, line 2( is not JSON|: must be a JSON object whose text)"):
            open_folder(folder, 128, tmp_path / "indexes")
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(UserError, match="holds no document; its files must end in .txt"):
        open_folder(folder, 128, tmp_path / "indexes")
    (folder / "….txt").write_text("…", encoding="utf-8")
    with pytest.raises(UserError, match="no page has a word"):
        open_folder(folder, 128, tmp_path / "indexes")
    assert not list((tmp_path / "indexes").glob("*/*.partial"))


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl"])
def test_text_in_another_encoding_is_left_out_and_a_byte_order_mark_is_removed(tmp_path, name):
    text = '{"text": "# 西湖"}' if name.endswith("jsonl") else "# 西湖"
    (tmp_path / name).write_bytes(text.encode("gbk"))
    empty = []
    assert list(read_documents(tmp_path, empty)) == [] and empty == [tmp_path / name]
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    assert [page.text for page in read_documents(tmp_path, [])] == ["# 西湖"]
