"""The quickstart's stages over several seeds: what search adds to a policy, and what learning from its trees adds.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies from which other benchmarks start
    .venv/bin/python -m benchmarks.quickstart --config envs/frozenlake
    .venv/bin/python -m benchmarks.quickstart --config quickstart --seeds 0 1 2

The result file and the folder of the runs are named after the recipe. Finished runs are only read; missing or
unfinished runs are made or resumed first. For a recipe with a pretrained model, "few-shot" is this model before any
training, with demonstrations in its prompt (``--shots``; 0 leaves it out).

A model whose updates take hours can be measured with one of them:

    .venv/bin/python -m benchmarks.quickstart --config envs/tireworld_llm --seeds 0 1 --set 'update.methods=["distil"]'

``--searched rft`` evaluates the policy of that update with search as well.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.command import limits_of, own_tasks, parser, record_of, search_figures, settings_of
from benchmarks.record import Row, digest
from treeagent.config import Mode, load_config
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import Run
from treeagent.pipeline.opening import fit_to_machine
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.recipes import find_recipe

QUESTION = "What does search add to a policy, and what does learning from the trees add?"


@dataclass(frozen=True)
class Cost:
    """The cost of a run that was made from beginning to end."""

    seconds: float
    peak_gib: float


def run(folder: Path, config: str, seed: int, overrides: Sequence[str]) -> Cost | None:
    """Make or finish one seed's run. Returns its cost, or None if the run had been started before."""
    if (folder / "report.html").exists():
        return None
    new, started = not folder.exists(), time.perf_counter()
    arguments = ["--config", config, "--out", str(folder), "--seed", str(seed), "--resume"]
    own = own_tasks(seed, load_config(find_recipe(config), overrides).evaluate.tasks)
    process = subprocess.Popen([sys.executable, "-m", "treeagent", "quickstart", *arguments, own, *overrides])
    peak = _PeakMemory(process.pid)
    if code := process.wait():
        raise SystemExit(code)
    return Cost(time.perf_counter() - started, peak.gib) if new else None


def few_shot(folder: Path, config: str, model: str, seed: int, shots: int) -> Row:
    """The row of a pretrained model that has seen demonstrations in its prompt, and is not trained."""
    settings = [f"policy.shots={shots}", 'evaluate.modes=["greedy"]']
    arguments = ["--config", config, "--out", str(folder), "--seed", str(seed), "--resume", *settings]
    own = own_tasks(seed, load_config(find_recipe(config)).evaluate.tasks)
    subprocess.run([sys.executable, "-m", "treeagent", "eval", model, *arguments, own], check=True)
    [row] = rows_of(folder, seed)
    return replace(row, arm="few-shot, greedy")


def search_with(folder: Path, updates: Sequence[str]) -> None:
    """Evaluate the policies of updates of a finished run with search too, and add the rows to the run's results."""
    with Run.create(folder, Run.open(folder).config, resume=True) as finished:
        evaluated: list[tuple[str, Mode]] = [(row["policy"], row["mode"]) for row in finished.result_rows()]
        wanted = dict.fromkeys([*evaluated, *((update, "mcts") for update in updates)])
        config = fit_to_machine(finished.config, finished.checkpoints / evaluated[0][0], finished.config)[0]
        evaluate(config, finished, RichProgress(), [(finished.checkpoints / name, mode) for name, mode in wanted])


def rows_of(folder: Path, seed: int) -> list[Row]:
    """A row for each policy and mode of a finished run."""
    finished = Run.open(folder)
    settings, first = digest(settings_of(finished.config)), finished.config.evaluate.first_task
    return [
        Row(
            f"{row['policy']}, {row['mode']}",
            seed,
            settings,
            first_task=first,
            solved=row["solved"],
            pass_at_n=row.get("pass_at_n", False),
            environment_steps=row["environment_steps"],
            generated_tokens=row["generated_tokens"],
            seconds=row["seconds"],
            figures={"reward": row["reward"], **search_figures(row)},
        )
        for row in finished.result_rows()
    ]


class _PeakMemory:
    """Peak memory of a process and its descendants together, sampled every second (Linux).

    Shared pages are divided among the processes that share them (PSS).
    """

    def __init__(self, process: int) -> None:
        self.gib = 0.0
        self._process = process
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._process}").exists():
            kib = sum(map(_proportional_kib, _family(self._process)))
            self.gib = max(self.gib, kib / 2**20)
            time.sleep(1)


def _family(process: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:  # the process has ended
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    family = [process]
    for member in family:  # the list grows while it is iterated
        family += parents.get(member, [])
    return family


def _proportional_kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    options = parser(__doc__, "")
    options.add_argument("--config", default="store_short", help="a recipe's name or a TOML file")
    options.add_argument("--shots", type=int, default=2, help="demonstrations in the prompt of the arm few-shot")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    options.add_argument("--searched", nargs="+", default=[], metavar="UPDATE", help="updates to evaluate with search")
    options.add_argument("--out", type=Path, help="folder of the runs seed0, seed1, ...; by default runs/NAME")
    arguments = options.parse_args()
    arguments.name = arguments.name or Path(arguments.config).stem
    out = arguments.out or Path("runs") / arguments.name
    recipe = load_config(find_recipe(arguments.config), arguments.set)
    with record_of(arguments, QUESTION, **limits_of(recipe)) as record:
        for seed in arguments.seeds:
            cost = run(out / f"seed{seed}", arguments.config, seed, arguments.set)
            if arguments.searched:
                search_with(out / f"seed{seed}", arguments.searched)
            rows = rows_of(out / f"seed{seed}", seed)
            if arguments.shots and (model := recipe.policy.model):
                folder = out / f"seed{seed}_few_shot"
                rows.append(few_shot(folder, arguments.config, model, seed, arguments.shots))
            for row in rows:
                if not record.has(row.arm, seed, row.settings):
                    record.add(row)
            if cost:
                figures = {"seconds": cost.seconds, "peak GiB": cost.peak_gib}
                record.add(Row("the whole run", seed, rows[0].settings, seconds=cost.seconds, figures=figures))


if __name__ == "__main__":
    main()
