"""Search with a reward model fitted to a run's trees, compared with the policy's value head alone, at equal tokens.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies and grows the trees
    .venv/bin/python -m benchmarks.rewards --seeds 0 1 2

The reward model gets the greatest weight that its audit allows. Both sides plan the same test tasks without rewards,
under one limit of generated tokens per task.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.config import Mode, load_config
from treeagent.contrib.judging.audit import read_audit
from treeagent.contrib.judging.reward_stage import fit_reward
from treeagent.pipeline.folder import REWARD, Run
from treeagent.pipeline.progress import RichProgress
from treeagent.search.limits import Limits

QUESTION = "Does a reward model from a run's trees lift search over the policy's value head?"
WAYS: tuple[Mode, ...] = ("mcts", "best_of_n")
SHOWN = ("pair_accuracy", "longer_worse_accuracy", "auc", "sibling_auc", "calibration_error", "cap")


def fit_reward_model(run: Path, out: Path, settings: list[str]) -> Path:
    """Fit a reward model in a copy of ``run``, which stays unchanged. Returns the path of the model."""
    model = out / "checkpoints" / REWARD
    if (model / "audit.json").is_file():
        return model
    if not out.exists():
        partial = out.with_name(f".{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        ignored = shutil.ignore_patterns("episodes", "figures", "evaluate-*", "*.html", "checkpoints", ".lock")
        shutil.copytree(run, partial, ignore=ignored)
        partial.rename(out)
    config = load_config(out / "config.toml", settings)
    with Run.create(out, Run.open(out).config, resume=True) as copy:
        fit_reward(config, copy, RichProgress(), run / "checkpoints" / "base")
    return model


def main() -> None:
    options = starting(__doc__, "rewards", out="runs/rewards")
    options.set_defaults(
        set=["update.reward.learning_rate=3e-4", "update.reward.batch_size=16", "update.reward.max_steps=600"]
    )
    options.add_argument("--tokens", type=int, nargs="+", default=[400, 800], help="limits of a task")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            model = fit_reward_model(arguments.runs / f"seed{seed}", arguments.out / f"seed{seed}", arguments.set)
            audit = read_audit(model)
            config = Run.open(arguments.runs / f"seed{seed}").config
            for tokens in arguments.tokens:
                for way in WAYS:
                    for name, weight in (("value head", 0.0), ("reward model", audit["cap"])):
                        search = replace(config.search, limits=Limits(generated_tokens=tokens), learned_weight=weight)
                        rewards = replace(config.rewards, learned=str(model) if weight else None)
                        settings = replace(
                            config, search=search, rewards=rewards, evaluate=replace(config.evaluate, best_of=100_000)
                        )
                        settings_record = settings_of(replace(settings, search=replace(search, learned_weight=0.0)))
                        settings_record |= {
                            "rewards.learned": "",
                            "tasks": arguments.tasks,
                            "fit": arguments.set if weight else [],
                        }
                        arm, settings_hash = f"{name}, {way}, {tokens} tokens", digest(settings_record)
                        if not record.has(arm, seed, settings_hash):
                            start = start_of(arguments.runs, seed, "base")
                            row = evaluate_arm(settings, start, way, arm, seed, settings_hash, arguments.tasks)
                            audit_figures = {each: audit[each] for each in SHOWN} if weight else {}
                            record.add(replace(row, figures={"tokens": tokens, **audit_figures}))
                            print(f"seed {seed} {arm}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()
