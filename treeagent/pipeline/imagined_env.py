"""A run's world model as a named environment, for every command that takes an environment."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.envs import make_env
from treeagent.envs.base import ToolSpec
from treeagent.types import Split, Task, UserError
from treeagent.world_model.environment import ImaginedEnv


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class WorldEnvOptions:
    """Settings of ``WorldEnv``."""

    run: str
    """Folder of a run with a world model: the one from ``treeagent world fit``, or else from the last round."""


class WorldEnv(ImaginedEnv):
    """The world model of a run instead of its environment. Tasks and tools come from the environment; the rest is
    imagined.

    It imagines one step at a time, while ``adapt.imagined`` batches the steps of many trees.

    Raises:
        RunError: the folder does not hold a run.
        UserError: the run has no world model, or its own environment is imagined.
    """

    options_type = WorldEnvOptions

    def __init__(self, options: WorldEnvOptions) -> None:
        # Imported here, because these modules load torch, which is not needed to list the environments.
        from treeagent.pipeline.folder import Run
        from treeagent.pipeline.imagination import world_model, world_of

        run = Run.open(Path(options.run))
        config, world = world_of(run)
        if config.environment.name == "imagined":  # checked before it is built, since a run may name itself
            raise UserError(f"the environment of {options.run} is imagined itself: give the run of a real one")
        self._real = make_env(config.environment.name, config.environment.options)
        self._opened = ExitStack()
        super().__init__(self._opened.enter_context(world_model(config, world, calls_alone=True)))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._real.tasks(split, count, start)

    def tools(self) -> Sequence[ToolSpec]:
        return self._real.tools()

    def close(self) -> None:
        super().close()
        self._opened.close()
        self._real.close()
