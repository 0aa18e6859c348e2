"""Build the parts of a config as the scripts do."""

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.domain import Domain, make_domain
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import Verdict, make_examiner
from arenarl.judges.verifier import Verifier
from arenarl.training.arena import Arena
from arenarl.training.queries import training_queries
from arenarl.training.step import TrainingStep
from arenarl.trajectory import Query

TOTAL = domain_rubric("travel", "en").total
QUERIES = [
    Query(f"q{index}", "travel", "Search", "en", f"Find a quiet cafe, please, number {index}.") for index in range(6)
]


def verdict_of(*scores):
    """A verdict with one score for all dimensions of a trajectory."""
    return Verdict(tuple(dict.fromkeys(PATH_DIMENSIONS + ANSWER_DIMENSIONS, score) for score in scores), TOTAL)


class ByNumber:
    """A judge that prefers the higher number in the answer."""

    async def compare(self, query, first, second, repeat=0):
        return verdict_of(*(int(trajectory.answer.split()[-1]) / 100 for trajectory in (first, second)))


class Poems(Domain):
    """A domain with a rubric only."""

    name = "writing"


def domain_of(config):
    return make_domain(config.environment, config.data)


def world_domain(world, **data):
    """The domain of one of AgentGym's worlds."""
    data = DataConfig(language="en", **data)
    return domain_of(Config(environment=EnvironmentConfig(name=world, domain=world), data=data))


def examiner_of(config):
    return make_examiner(domain_of(config))


def trainer_judge_of(config, judge=None, examine=None):
    return make_judge(judge or config.judge.train, domain_of(config), examine or examiner_of(config), None, config.seed)


def arena_of(config, judge, client=None):
    verifier = Verifier(config.judge.verifier, client)
    return Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)


def training_queries_of(config):
    return training_queries(domain_of(config), config.rl, config.reward.name, config.pass_rates)


class KeptSteps(TrainingStep):
    """A training step that keeps the groups and outcomes of every step."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.all_groups, self.all_outcomes = [], []

    def finish(self, number):
        metrics = super().finish(number)
        judged = self.batch.judged()
        self.all_groups.append([group for group, _ in judged])
        self.all_outcomes.append([outcome for _, outcome in judged])
        return metrics
