"""The adapter of WebArena-Infinity, on an app of our own that works as its apps do."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from treeagent.contrib.worlds.webarena import WebArenaEnv, WebArenaOptions, digest
from treeagent.envs import check_env
from treeagent.types import UserError

PAGE = """<!doctype html><title>Notes</title><label>Note <input id=note></label>
<label>Colour <select id=colour><option>red</option><option>blue</option></select></label>
<button onclick="save()">Save</button><p id=said></p>
<button style="position: absolute; z-index: -1; left: 0; top: 0">Under</button><h1 style="height: 40px">Notes</h1>
<script>
const kept = JSON.parse(localStorage.kept || "[]")
function send() { fetch("/api/state", { method: "PUT", body: JSON.stringify({ notes: kept }) }) }
function save() {
  kept.push([note.value, colour.value]); localStorage.kept = JSON.stringify(kept)
  setTimeout(send, 300)
  said.textContent = `${kept.length} at ${new Date().toISOString()} ${Math.random()}`
}
send()
</script>"""
VERIFIER = """import requests

def verify(server_url):
    notes = requests.get(f"{server_url}/api/state").json()["notes"]
    return notes[-1] == ["milk", "blue"], "the last note"
"""


@pytest.fixture
def options(tmp_path: Path) -> WebArenaOptions:
    app = tmp_path / "apps" / "notes"
    app.mkdir(parents=True)
    (app / "index.html").write_text(PAGE)
    (app / "milk.py").write_text(VERIFIER)
    rows = [{"id": f"task_{each}", "instruction": "Note milk in blue.", "verify": "milk.py"} for each in range(20)]
    (app / "real-tasks.json").write_text(json.dumps(rows))
    return WebArenaOptions(path=tmp_path, app="notes", digest=digest(app), sandbox=os.geteuid() != 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("chromium"), reason="no browser")
def test_an_app_is_used_judged_and_replayed(options: WebArenaOptions) -> None:
    pytest.importorskip("playwright", reason="the browser extra is not installed")
    env, other = WebArenaEnv(options), WebArenaEnv(options)
    task = env.tasks("test", 1)[0]
    names = {name: each for name, each in re.findall(r'(\w+)" \[ref=(\w+)', env.reset(options={"task": task})[0])}
    calls = [
        f"type[{names['Note']}, milk]",
        f"select[{names['Colour']}, blue]",
        f"click[{names['Save']}]",
    ]
    for call in calls:
        assert env.verify() == 0.0 and env.step(call)[4] == {}
    assert "1 at 2026-03-01T12:00:01.500Z" in env._shown
    for call, why in (("click[e99]", "no element e99"), (f"click[{names['Under']}]", "covered")):
        assert why in env.step(call)[0]
    assert env.step("finish[]")[1:3] == (1.0, True)
    report = check_env(env, task, other=other, actions=[*calls, "press[Tab]", "finish[]"], branches=3, depth=3)
    assert report.passed and report.equal_branches == report.branches > 0, report.violations
    env.close()
    other.close()


def test_a_missing_clone_an_unknown_app_and_verifiers_that_nobody_knows_are_named(options: WebArenaOptions) -> None:
    for wrong, why in (
        (replace(options, path=options.path / "no"), "clone"),
        (replace(options, app="mail"), "one of notes"),
        (replace(options, digest=""), "digest="),
    ):
        with pytest.raises(UserError, match=why):
            WebArenaEnv(wrong)
