"""The command `arenarl`: its first word names what to do, the rest goes to that part's own command line.

arenarl rank candidates.jsonl --judge openai --rubric "true and short" --out ranked.jsonl
"""

import sys

from arenarl.system.errors import run_cli

_USAGE = """usage: arenarl rank CANDIDATES --out RANKED [options]

  rank    rank the candidates of each prompt in a file; arenarl rank --help lists the options
"""


def main() -> None:
    """Run the subcommand that the command line names; without one, print the usage."""
    command, words = sys.argv[1:2], sys.argv[2:]
    if command == ["rank"]:
        from arenarl.rank.__main__ import main as rank

        run_cli(lambda: rank(words))
    is_help = command in ([], ["-h"], ["--help"])
    print(_USAGE, end="", file=sys.stdout if is_help else sys.stderr)
    sys.exit(0 if is_help else 2)


if __name__ == "__main__":
    main()
