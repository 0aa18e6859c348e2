
import hashlib, os, re
from test_report import Run
from arenarl.trajectory import append_step
def digest(world, compact, taught, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(tmp_path, world, compact, [one.query for one in taught[::17]])
    step = {"step": 0, "scores": [5.0, 6.0], "judged": [5.0, 5.5], "agreement": 0.5, "calls": 2, "failed": 0}
    for k in range(12):
        append_step(run.dir / "rl" / "watch.jsonl", k, [step | {"step": k, "agreement": k / 20}])
    run.evaluate(bracket=True)
    page = re.sub(r"commit [0-9a-f]{7}(-dirty)?|&quot;commit&quot;: .*", "", run.page())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in sorted((run.results / "figures").iterdir())}
    return {"page": hashlib.sha256(page.encode()).hexdigest()[:12]} | files
def test_digest(world, compact, taught, tmp_path, monkeypatch):
    import json
    open(os.environ["DIGEST"], "w").write(json.dumps(digest(world, compact, taught, tmp_path, monkeypatch), indent=1))
