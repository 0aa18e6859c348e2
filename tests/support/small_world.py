"""A user's own world with one tool, and only the members that the docs require."""

from arenarl.rollout.environment import tool_schema


class Menu:
    tools = [tool_schema("price_of", "Says what a dish costs.", {"dish": {"type": "string"}})]
    calls: list[str] = []

    def __init__(self, config, language):
        self.prices = {"soup": 30, "pie": 45, "tea": 12}

    def reset(self, query):
        return None

    def call(self, name, arguments):
        Menu.calls.append(arguments["dish"])
        return f"{arguments['dish']} costs {self.prices.get(arguments['dish'], 99)} yuan"
