"""A small HTTP server with OpenAI's chat-completions interface that plays all roles of data/build.py,
with mistakes and faults on request.

    python -m arenarl.synthesis.server --config configs/data/local.yaml --port 8766 [--faults 0.1] [--mistakes 0.2]
        [--inspector-error 0.1]

For tests, demos and CI: the three stages run without a key. The request's model says who is asked: simulated-generator
(or a longer name), -refiner, -extractor, -teacher, -rewriter, -inspector; any other is the judge of
arenarl.judges.server. They know the travel world and a pool of its queries, which `data.seed` makes; a restarted server
says the same. Of generators, teacher and rewriter replies at temperature 0 repeat themselves, others are drawn anew
each time. A generator's style is not acted on.
"""

import argparse
from functools import partial
from typing import Any

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import SIMULATED_MODEL, Config
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.domain import TravelDomain
from arenarl.judges.benchmark_replies import Reply
from arenarl.judges.judge import make_examiner
from arenarl.judges.server import JudgeServer, add_server_options, running_server, serve, server_options, share
from arenarl.synthesis.query_pool import QueryPool
from arenarl.synthesis.simulated_roles import SimulatedRoles
from arenarl.synthesis.simulated_teacher import SimulatedTeacher
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory

PREFIX = "simulated-"
ROLES = ("generator", "refiner", "extractor", "teacher", "rewriter", "inspector")
MODULE = "arenarl.synthesis.server"
PORT = 8766

# (config, overrides, port, *options) → the address of one in a process of its own
running_roles = partial(running_server, module=MODULE)


class RoleServer(JudgeServer):
    """Args:
    mistakes: of generator, refiner, extractor, teacher and rewriter; their docstrings say of what it is the share.
    inspector_error: the share of its verdicts that are wrong.
    pool: the queries that it knows; the config's, if none is given.
    faults: as a JudgeServer's.

    Raises:
        UserError: the config is of another world.
    """

    models = (SIMULATED_MODEL, *(PREFIX + role for role in ROLES))

    def __init__(
        self,
        config: Config,
        mistakes: float = 0.2,
        inspector_error: float = 0.1,
        pool: QueryPool | None = None,
        **faults: Any,
    ):
        domain = make_domain(config.environment, config.data)
        if not isinstance(domain, TravelDomain) or config.environment.name != "travel":
            named = f"environment.domain={config.environment.domain}, environment.name={config.environment.name}"
            raise UserError(
                f"{MODULE} plays its roles in the travel world alone, not with {named}; "
                "set both to travel, without data.source"
            )
        environments = {language: make_environment(config.environment, language) for language in ("zh", "en")}

        def solve(query: Query, *how: Any) -> Trajectory:
            return domain.solve(query, environments[query.language], *how)

        seed, examine = config.data.seed, make_examiner(domain)
        pool = QueryPool(domain.world, seed) if pool is None else pool
        super().__init__(pool, examine, config.judge.train, config.seed, **faults)
        self.roles = SimulatedRoles(pool, examine, seed, mistakes, inspector_error)
        self.teacher = SimulatedTeacher(pool, solve, seed, mistakes)

    async def _said(self, body: dict[str, Any], repeat: int) -> Reply:
        model, messages = str(body["model"]), body["messages"]
        role = next((role for role in ROLES if model.startswith(PREFIX + role)), None)
        if role in ("teacher", "rewriter"):
            return self.teacher.reply(
                messages, role == "rewriter", repeat if body.get("seed") is None else 0, body.get("seed")
            )
        if role:
            return self.roles.reply(role, model, messages, repeat)
        return await super()._said(body, repeat)


def main() -> None:
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_server_options(parser, PORT)
        parser.add_argument(
            "--mistakes", type=share, default=0.2, help="how often the roles err: bad queries, invented facts, refusals"
        )
        parser.add_argument(
            "--inspector-error", type=share, default=0.1, help="share of the inspector's verdicts that are wrong"
        )

    config, arguments = parse_arguments(__doc__, add_options)
    serve(
        RoleServer(config, arguments.mistakes, arguments.inspector_error, **server_options(arguments)), arguments.port
    )


if __name__ == "__main__":
    from arenarl.system.errors import guarded

    guarded(main)
