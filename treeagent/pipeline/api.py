"""One stage at a time, from Python: search, update, evaluate. ``treeagent.quickstart`` and ``treeagent.train`` run all.

    import treeagent

    config = treeagent.load_config("quickstart", ["collect.tasks=100"])
    treeagent.quickstart(config, "runs/shop")
    treeagent.collect(config, "runs/more", "runs/shop/checkpoints/base")
    policy = treeagent.update(config, "runs/more", "runs/shop/checkpoints/base", "dpo")
    rows = treeagent.evaluate(config, "runs/more", policy)

The commands of the command line call these functions. Each continues what an earlier call has begun in the same
folder.
"""

from collections.abc import Sequence
from pathlib import Path

from treeagent import config as settings
from treeagent.config import Method, RunConfig
from treeagent.pipeline import collect as collecting
from treeagent.pipeline import evaluate as evaluating
from treeagent.pipeline import update as updating
from treeagent.pipeline.folder import COLLECTED, Run, RunError
from treeagent.pipeline.opening import opened, require_whole_vocabulary
from treeagent.pipeline.outcomes import Row
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.recipes import find_recipe
from treeagent.store import shard_names


def load_config(recipe: str | Path | None = None, overrides: Sequence[str] = (), seed: int | None = None) -> RunConfig:
    """The settings of a recipe or a TOML file, changed by overrides such as "collect.tasks=32".

    Args:
        recipe: the name of a recipe, such as "quickstart", or the path of a file; None means the defaults.
    """
    return settings.load_config(None if recipe is None else find_recipe(str(recipe)), overrides, seed=seed)


def collect(
    config: RunConfig,
    out: str | Path,
    checkpoint: str | Path,
    *,
    resume: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Search ``collect.tasks`` training tasks with a policy, one tree each. Returns the folder of the trees."""
    start = Path(checkpoint)
    with opened(config, out, ["collect"], checkpoint=start, resume=resume, progress=progress) as (run, shown):
        collecting.collect(run.config, run, shown, start)
        return run.trees


def update(
    config: RunConfig,
    out: str | Path,
    checkpoint: str | Path,
    method: Method,
    *,
    trees: str | Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Update a policy by one method. Returns the folder of the new checkpoint.

    Args:
        trees: the run whose trees to learn from; by default the run ``out``.
    """
    start, source = Path(checkpoint), Path(out if trees is None else trees)
    if not any(name.startswith(COLLECTED) for name in shard_names(source / "trees")):
        raise RunError(f"{source} holds no trees: make some with treeagent collect CHECKPOINT --out {source}")
    lender = None if trees is None else Run.open(source)
    if lender is not None:
        require_whole_vocabulary(lender.config, [method])
    with opened(config, out, ["update"], methods=[method], checkpoint=start, resume=resume, progress=progress) as (
        run,
        shown,
    ):
        return updating.update(run.config, run, shown, start, [method], lender)[0]


def evaluate(
    config: RunConfig,
    out: str | Path,
    checkpoint: str | Path,
    *,
    resume: bool = True,
    progress: Progress | None = None,
) -> list[Row]:
    """Play the held-out tasks in every mode of ``evaluate.modes``. Returns one row a mode, as in RUN/results.json."""
    policy = Path(checkpoint)
    with opened(config, out, ["evaluate"], checkpoint=policy, resume=resume, progress=progress) as (run, shown):
        return evaluating.evaluate(run.config, run, shown, [(policy, mode) for mode in run.config.evaluate.modes])
