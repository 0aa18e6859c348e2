"""A small HTTP server with OpenAI's chat-completions interface that plays all roles of data/build.py, with mistakes and
faults on request.

    python -m arenarl.synthesis.server --config configs/data/local.yaml --port 8766 [--faults 0.1] [--mistakes 0.2]
        [--inspector-error 0.1]

For tests, demos and CI: the build runs without a key. The request's model chooses the role: simulated-generator (or a
longer name), -refiner, -extractor, -teacher, -rewriter, -inspector; any other name is the judge of
arenarl.judges.server. The roles use the travel world and a pool of queries made from `data.seed`, so a restarted server
gives the same replies. Generators, teacher and rewriter repeat a reply at temperature 0 and draw a new one otherwise.
A generator ignores its style.
"""

from functools import partial
from typing import Any

from arenarl.config.schema import SIMULATED_MODEL, Config
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.domain import TravelDomain
from arenarl.judges.judge import make_examiner
from arenarl.judges.local_server import Reply, running_server, serve
from arenarl.judges.server import JudgeServer
from arenarl.synthesis.query_pool import QueryPool
from arenarl.synthesis.simulated_roles import SimulatedRoles, SimulatedTeacher
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Query, Trajectory

PREFIX = "simulated-"
ROLES = ("generator", "refiner", "extractor", "teacher", "rewriter", "inspector")
MODULE = "arenarl.synthesis.server"

# (config, overrides, port, *options) → the address of a server in its own process
running_roles = partial(running_server, module=MODULE)


class RoleServer(JudgeServer):
    """Replies in every role. `SimulatedRoles` and `SimulatedTeacher` define `mistakes` and `inspector_error`.

    `pool` has the known queries, by default made from `data.seed`; `options` are fields of `LocalServer`. Raises
    UserError if the config names another world than travel.
    """

    models = (SIMULATED_MODEL, *(PREFIX + role for role in ROLES))

    def __init__(
        self, config: Config, mistakes: float, inspector_error: float, pool: QueryPool | None = None, **options: Any
    ):
        domain = make_domain(config.environment, config.data)
        if not isinstance(domain, TravelDomain) or config.environment.name != "travel":
            named = f"environment.domain={config.environment.domain}, environment.name={config.environment.name}"
            remedy = "set both to travel, without data.source"
            raise UserError(f"{MODULE} plays its roles in the travel world alone, not with {named}; {remedy}")
        environments = {language: make_environment(config.environment, language) for language in ("zh", "en")}

        def solve(query: Query, *how: Any) -> Trajectory:
            return domain.solve(query, environments[query.language], *how)

        seed, examine = config.data.seed, make_examiner(domain)
        pool = QueryPool(domain.world, seed) if pool is None else pool
        super().__init__(pool, examine, config.judge.train, config.seed, **options)
        self.roles = SimulatedRoles(pool, examine, seed, mistakes, inspector_error)
        self.teacher = SimulatedTeacher(pool, solve, seed, mistakes)

    async def reply(self, body: dict[str, Any], repeat: int) -> Reply:
        model, messages, seed = str(body["model"]), body["messages"], body.get("seed")
        role = next((role for role in ROLES if model.startswith(PREFIX + role)), None)
        if role in ("teacher", "rewriter"):
            return self.teacher.reply(messages, role == "rewriter", repeat if seed is None else 0, seed)
        return self.roles.reply(role, model, messages, repeat) if role else await super().reply(body, repeat)


SHARES = {
    "mistakes": (0.2, "how often the roles err: bad queries, invented facts, refusals"),
    "inspector_error": (0.1, "share of the inspector's verdicts that are wrong"),
}

if __name__ == "__main__":
    run_cli(lambda: serve(RoleServer, __doc__, 8766, SHARES))
