"""Write data/sft.jsonl: trajectories of a script that uses the tools, good and bad ones. python teach.py"""

import json
import random
from pathlib import Path

from library import BOOKS, Catalogue


def solve(query, rng):
    """Return the messages of one trajectory. Half of the trajectories omit the copies, and 30 % are wordy."""
    topic = next(topic for topic in BOOKS if topic in query)
    catalogue, (title, shelf, copies) = Catalogue(None, "en"), BOOKS[topic]
    messages = [{"role": "user", "content": query}]

    def call(name, **arguments):
        function = {"name": name, "arguments": arguments}
        calls = [{"type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "tool", "content": catalogue.call(name, arguments)})

    call("search", topic=topic)
    answer = f"{title}, shelf {shelf}"
    if rng.random() < 0.5:
        call("count", title=title)
        answer += f", copies: {copies}"
    if rng.random() < 0.3:
        answer = f"Thank you for asking. You will find this book here: {answer}. Enjoy it."
    messages.append({"role": "assistant", "content": f"<answer>\n{answer}\n</answer>"})
    return messages


if __name__ == "__main__":
    rng = random.Random(0)
    records = Path("data/rl_queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(record)["query"] for record in records]
    lines = [json.dumps({"messages": solve(query, rng)}) for _ in range(10) for query in queries]
    Path("data/sft.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
