"""The files of a finished run, made by a scripted teacher and the simulated judge."""

import math
import random
from dataclasses import replace
from functools import partial

from parts import arena_of

from arenarl.config.load import config_to_yaml, load_config
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine
from arenarl.evaluation.evaluation import Panel, baseline_cases, evaluate_policy, summarize
from arenarl.evaluation.length import by_length
from arenarl.evaluation.playoffs import play_offs
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import cached_examiner
from arenarl.report.page import write_page
from arenarl.report.provenance import provenance
from arenarl.report.summary import summary_of_run
from arenarl.system.atomic_files import write_json
from arenarl.tables.documents import TRAVEL
from arenarl.training.metrics import group_records
from arenarl.trajectory import RolloutGroup, Trajectory, append_step, write_jsonl

HOSTILE = (
    '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2"><svg '
    "onload=window.hacked=3>${alert(1)}' $data &lt;"
)
NAMES = ["baseline", "sft sampled", "sft greedy", "rl sampled", "rl greedy"]


class StoredRollouts:
    """An engine that returns stored trajectories."""

    def __init__(self, trajectories):
        self.trajectories = trajectories

    def roll_out(self, attempts, tick):
        trajectories = [self.trajectories[attempt.query.query_id] for attempt in attempts]
        for index, trajectory in enumerate(trajectories):
            tick(index, trajectory)
        return trajectories


def hostile_trajectory(query_id):
    function = {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "x": [math.nan, math.inf]}}
    call = {"type": "function", "function": function}
    return Trajectory(query_id, [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "reasoning_content": HOSTILE, "content": "", "tool_calls": [call]},
        {"role": "tool", "content": HOSTILE},
        {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{HOSTILE}\n</answer>"},
    ], "answer")  # fmt: skip


class Run:
    """The files of a finished run, with a scripted teacher in place of the policies."""

    def __init__(self, root, world, compact, queries, bracket=True, name="small", changes=(), skill=0.9):
        changes = [f"name={name}", "rollout.group_size=4", "evaluate.bootstrap=20", *changes]
        self.config, self.skill = load_config("configs/quickstart.yaml", changes), skill
        self.dir, self.results = root / self.config.run_dir, root / "results" / self.config.run_name
        self.queries = [replace(queries[0], query=HOSTILE), *queries[1:]]
        self.teacher, self.examine = Teacher(world, compact), cached_examiner(partial(examine, world))
        self.evaluate(bracket)
        self.train()

    def solve(self, key, skill):
        pairs = [(query, random.Random(f"{key} {k}")) for k, query in enumerate(self.queries)]
        return {query.query_id: self.teacher.solve(query, rng, skill) for query, rng in pairs}

    def evaluate(self, bracket):
        judges = [EmbeddedJudge(self.config.judge.eval[0], self.examine, 0)]
        baselines, cases, figures = self.solve("baseline", 0.4), {}, {"sft": {}, "rl": {}}
        for name in NAMES[1:]:
            trajectories = self.solve(name, 0.2 if name.startswith("sft") else self.skill)
            if name == "rl greedy":
                trajectories[self.queries[0].query_id] = hostile_trajectory(self.queries[0].query_id)
                trajectories[self.queries[1].query_id].stop_reason = "max_turns"
            panel = Panel(judges, self.examine)
            cases[name] = evaluate_policy(StoredRollouts(trajectories), self.queries, baselines, panel, 0.0, 0)
            checkpoint, decoding = name.split()
            lengths = {"by_length": by_length(cases[name], baselines, 20, 0)}
            figures[checkpoint][decoding] = summarize(cases[name], 20, 0) | lengths
        folder = self.dir / "evaluate"
        for name, judged in {**cases, "baseline": baseline_cases(self.queries, baselines, self.examine)}.items():
            write_jsonl(folder / f"{name.replace(' ', '_')}.jsonl", [case.to_record() for case in judged])
        write_jsonl(folder / "tournaments.jsonl", play_offs(self.queries, baselines, cases, judges, bracket, 0))
        (folder / "config.yaml").write_text(config_to_yaml(self.config))
        write_json(self.results / "summary.json", summary_of_run(self.config, figures))

    def train(self):
        arena = arena_of(self.config, EmbeddedJudge(self.config.judge.train, self.examine, 0))
        solutions = [self.solve(f"sample {g}", 0.3) for g in range(4)]
        queries = self.queries[:3]
        groups = [RolloutGroup(query, [solution[query.query_id] for solution in solutions]) for query in queries]
        for group in groups:
            group.trajectories[0].is_anchor = True
        for step in (0, 2):
            records = group_records(step, groups, arena.reward_groups(groups), self.examine)
            for record in records:
                record["ranking"]["matches"][0]["calls"][0]["detail"].append(HOSTILE)  # the judge's reason
            append_step(self.dir / "rl" / "groups.jsonl", step, records)
            append_step(self.dir / "rl" / "curve.jsonl", step, [self.point(step)])
        (self.dir / "rl" / "config.yaml").write_text(config_to_yaml(self.config))
        write_json(self.dir / "rl" / "provenance.json", provenance(self.config))
        metrics = {"judge/sigma_noise": 0.5, "kl": 0.01, "entropy": 1.0, "judge/failure_rate": 0.0}
        log = [{"step": step, "true/quality_spread": 1.0 + step % 3, **metrics} for step in range(1, 20)]
        write_json(self.dir / "rl" / "checkpoint-20" / "trainer_state.json", {"log_history": log})

    @staticmethod
    def point(step, shift=0.0):
        names = [f"eval/{decoding}/{name}" for decoding in ("sampled", "greedy") for name in TRAVEL]
        intervals = {name: [9.0 + step, 12.0 + step] for name in names}
        return {"step": step, **dict.fromkeys(names, 10.0 + step + shift), "ci": intervals}

    def page(self):
        return write_page(self.dir, self.results).read_text(encoding="utf-8")
