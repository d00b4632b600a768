"""What an evaluation's finished waves told, kept beside the run until their row is whole, so that none is played twice.

A wave is a file ``<stage>-<index>.json``, whole or not there at all.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from treeagent.evaluate import Outcome
from treeagent.store import write_atomic
from treeagent.types import storable


@dataclass(frozen=True, slots=True)
class PlayedWave:
    """How a wave went."""

    tasks: tuple[int, ...]
    """Their places in the split."""
    outcomes: tuple[Outcome, ...]
    """In the tasks' order."""
    seconds: float
    shard: str = ""
    """The file that holds the trees it planned in; empty where it stored none."""


_WAVE = TypeAdapter(PlayedWave)


def keep_wave(folder: Path, stage: str, index: int, wave: PlayedWave) -> None:
    """
    Raises:
        StoreError: the file system refused; nothing is left behind.
    """
    folder.mkdir(exist_ok=True)
    told = replace(wave, outcomes=tuple(replace(each, error=storable(each.error)) for each in wave.outcomes))
    write_atomic(_path(folder, stage, index), orjson.dumps(asdict(told)))


def kept_wave(folder: Path, stage: str, index: int, tasks: Sequence[int], trees: Path) -> PlayedWave | None:
    """The wave, if it is there whole, of these tasks and with its trees: what is damaged is played again."""
    try:
        wave = _WAVE.validate_json(_path(folder, stage, index).read_bytes())
    except (FileNotFoundError, ValueError):  # pydantic's error is a ValueError
        return None
    whole = wave.tasks == tuple(tasks) and len(wave.outcomes) == len(tasks)
    return wave if whole and (not wave.shard or (trees / wave.shard).exists()) else None


def forget_waves(folder: Path, stage: str, indices: Iterable[int]) -> None:
    """Remove what was kept of a stage, and the folder with the last of it."""
    for index in indices:
        _path(folder, stage, index).unlink(missing_ok=True)
    with suppress(OSError):  # other stages' waves are in it, or it never was
        folder.rmdir()


def _path(folder: Path, stage: str, index: int) -> Path:
    return folder / f"{stage}-{index:05d}.json"
