from arenarl.system.own_code import code_hashes, own_code


def test_own_code_is_a_package_or_else_the_imported_modules(own_modules, tmp_path):
    own_modules({"folder/world.py": "from . import rules\nfrom arenarl import trajectory\n\nclass World:\n    pass\n",
         "folder/rules.py": "from folder.cities import CITIES\n", "folder/cities.py": "CITIES = []\n",
         "folder/other.py": ""})  # fmt: skip
    assert [path.name for path in own_code(["folder.world:World"])] == ["cities.py", "rules.py", "world.py"]
    own_modules(
        {
            "pack/__init__.py": "",
            "pack/world.py": "from arenarl.rollout.environment import NoTools\n",
            "pack/lazy.py": "",
        }
    )
    assert [path.name for path in own_code(["pack.world:NoTools"])] == ["__init__.py", "lazy.py", "world.py"]
    assert own_code(["travel", "arenarl.rollout.environment:NoTools"]) == []
    (tmp_path / "folder/old.py").write_bytes("# coding: latin-1\nclass World:\n    town = 'Köln'\n".encode("latin-1"))
    assert [path.name for path in own_code(["folder.old:World"])] == ["old.py"]


def test_code_hashes_name_every_own_function_and_class_of_a_config(own_modules):
    own_modules({"mine.py": "def cheap(): pass\n\nclass World: pass\n", "broken.py": "def ("})
    ours = "arenarl.rollout.environment:NoTools"
    settings = {"reward": {"name": "mine:cheap"}, "judges": [{"name": "mine:World"}, "broken:Judge"], "size": 3,
                "model": "org/model:main", "environment": ours, "missing": "absent:X"}  # fmt: skip
    hashes = code_hashes(settings)
    assert hashes.keys() == {f"the code of {name}" for name in ("mine:cheap", "mine:World", "broken:Judge")}
    own_modules({"mine.py": "def cheap(): return 1\n"})
    assert {name for name, sha256 in code_hashes(settings).items() if hashes[name] != sha256} == {
        "the code of mine:cheap", "the code of mine:World"
    }  # fmt: skip
