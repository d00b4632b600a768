"""What the files of a downloaded run or checkpoint could cause: running code, contacting another machine, a
traceback."""

import json
from pathlib import Path

import pytest
from command import treeagent

from treeagent.config import reaching_out
from treeagent.envs import make_env
from treeagent.types import UserError

SETTINGS: list[tuple[str, object]] = [
    ("environment.name", "os:system"),
    ("environment.wrappers", ["os:system"]),
    ("policy.url", "http://192.0.2.1/v1"),
    ("world.url", "http://192.0.2.1/v1"),
    ("evaluate.world", "theirs"),
]


def downloaded(folder: Path, key: str, value: object) -> Path:
    """A run with a checkpoint, in whose settings ``key`` has ``value``."""
    checkpoint = folder / "checkpoints" / "base"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    (folder / "trees").mkdir()
    (folder / "config.toml").write_text(f"{key} = {json.dumps(value)}\n")
    return checkpoint


def refused(*arguments: str | Path) -> str:
    ended = treeagent(*arguments)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_a_run_that_was_found_by_its_checkpoint_names_no_code_and_no_machine(
    tmp_path: Path, key: str, value: object
) -> None:
    checkpoint = downloaded(tmp_path / "theirs", key, value)
    said = refused("eval", checkpoint, "--out", tmp_path / "out")
    assert key in said and repr(value) in said and "config.toml" in said and "--trust" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["collect", "CHECKPOINT", "--out", "OUT"],
        ["eval", "CHECKPOINT", "--out", "RUN"],
        ["quickstart", "--out", "RUN", "--resume"],
        ["world", "fit", "RUN"],
        ["world", "eval", "RUN"],
        ["eval", "elsewhere/model", "--out", "OUT", "evaluate.world=RUN"],
    ],
)
def test_no_command_runs_code_that_a_found_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    checkpoint = downloaded(tmp_path / "theirs", "environment.name", "planted:Env")
    (tmp_path / "planted.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    places = {"CHECKPOINT": str(checkpoint), "OUT": "out", "RUN": "theirs"}
    arguments = [each.replace("RUN", "theirs") if "=" in each else places.get(each, each) for each in command]
    assert "planted:Env" in refused(*arguments)
    assert not (tmp_path / "ran").exists()


def test_what_the_user_names_too_and_what_is_trusted_is_used(tmp_path: Path) -> None:
    checkpoint = downloaded(tmp_path / "mine", "environment.name", "gone:Env")
    hosted = "policy.generator=chat"  # reads no tokenizer
    call = ("eval", checkpoint, "--out", tmp_path / "out", hosted)
    for accepted in (["--trust"], ["environment.name=gone:Env"], ["--config", tmp_path / "mine" / "config.toml"]):
        said = refused(*call, *accepted)
        assert "cannot be imported" in said, said
    assert "config.toml" in treeagent(*call, "--trust").stderr


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "pathlib:Path"])
def test_only_what_makes_an_environment_is_called(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"command": "touch ran"} if name == "os:system" else {"args": "touch ran", "shell": True}
    with pytest.raises(UserError, match=name):
        make_env(name, options)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "option", ['container = ["planted", "run", "x"]', 'url = "http://elsewhere"', 'key = "SECRET"', 'digest = "0123"']
)
def test_options_of_a_world_that_run_programs_are_the_user_s_to_name(tmp_path: Path, option: str) -> None:
    file, name = tmp_path / "config.toml", "webarena" if "digest" in option else "sandbox"
    file.write_text(f'[environment]\nname = "{name}"\noptions = {{ {option} }}\n')
    [(key, _)] = reaching_out(file)
    assert key == f"environment.options.{option.partition(' ')[0]}"
    assert not list(reaching_out(file, [f"{key}=0"]))
