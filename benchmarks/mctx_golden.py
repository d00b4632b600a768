"""Small worlds as tables, and their searches by DeepMind's mctx: the reference for tests/search/test_mctx.py.

Run this where mctx is installed beside treeagent (pip install mctx, which also installs jax):

    python -m benchmarks.mctx_golden && git diff tests/golden
"""

import functools
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from treeagent.search.gumbel import gumbel_noise

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "mctx.json"
SHAPES = ((2, 16), (3, 6), (4, 24), (6, 40), (8, 64))
"""(actions, simulations)."""
STATES = 10
CASES_OF_A_SHAPE = 8

Case = dict[str, Any]
"""A world and the settings of its search, as JSON."""
Result = dict[str, Any]
"""``visits``: for each path, the visits of the actions at its state. ``values``: Q of the root's actions, 0 if untried.
``weights`` and ``action``: Gumbel's improved policy and the action that it takes."""


def cases() -> Iterator[Case]:
    """The same cases on every call."""
    for method in ("puct", "puct, fixed range", "gumbel"):
        for actions, simulations in SHAPES:
            for number in range(CASES_OF_A_SHAPE):
                yield _case(method, actions, simulations, number)


def _case(method: str, actions: int, simulations: int, number: int) -> Case:
    rng = np.random.default_rng([len(method), actions, simulations, number])
    ends = rng.choice(["", "terminated", "truncated"], size=STATES, p=[0.7, 0.2, 0.1]).tolist()
    ends[0] = ""
    settings: dict[str, Any] = {"discount": float(rng.choice([1.0, 0.9]))}
    if method == "gumbel":
        settings["gumbel_considered"] = int(rng.choice([4, 16]))
        settings["gumbel_visit_offset"] = float(rng.choice([50.0, 5.0]))
        settings["gumbel_value_scale"] = float(rng.choice([0.1, 0.5]))
        settings["gumbel_scale"] = float(number % 3 > 0)
    else:
        settings["c_init"] = float(rng.choice([1.25, 0.5]))
        settings["c_base"] = float(rng.choice([19652.0, 20.0]))
        settings["first_play_reduction"] = float(rng.choice([0.0, 0.1, 0.4]))
        settings["value_range"] = (-1.0, 2.0) if method.endswith("fixed range") else None
    return {
        "method": method.partition(",")[0],
        "simulations": simulations,
        "settings": settings,
        "seed": number,
        "noise": gumbel_noise(actions, number),
        "ends": ends,
        "next": rng.integers(0, STATES, size=(STATES, actions)).tolist(),
        "reward": rng.normal(0, 0.3, size=(STATES, actions)).round(4).tolist(),
        "prior": rng.dirichlet([0.7] * actions, size=STATES).clip(1e-3).round(4).tolist(),
        "value": rng.normal(0, 1, size=STATES).round(4).tolist(),
    }


def by_mctx(case: Case) -> Result:
    """The result of mctx's own policy on the case. Its transformation of Q is a parameter; where mctx and treeagent
    differ by design, it is set to treeagent's.

    The first-play value of a state is the mean value of its tried actions less a reduction, not their minimum. Q is
    rescaled by all values seen in the tree (MuZero, appendix B), not by those of the siblings.
    """
    actions = len(case["prior"][0])
    settings = case["settings"]
    play = _compiled(case["method"], case["simulations"], actions, settings.get("gumbel_considered", 0))
    world = {name: np.asarray(case[name]) for name in ("next", "reward", "prior", "value", "noise")}
    world |= {kind: np.asarray([end == kind for end in case["ends"]]) for kind in ("terminated", "truncated")}
    world |= {name: np.asarray(number) for name, number in settings.items() if number is not None}
    output = play(world)
    tree = output.search_tree
    result: Result = {
        "visits": dict(_visits(tree, [bool(end) for end in case["ends"]])),
        "values": _where_visited(tree.children_rewards + tree.children_discounts * tree.children_values, tree),
    }
    if case["method"] == "gumbel":
        result |= {"weights": output.action_weights[0].tolist(), "action": int(output.action[0])}
    return result


def _where_visited(values: Any, tree: Any) -> list[float]:
    rows = zip(values[0, 0].tolist(), tree.children_visits[0, 0].tolist(), strict=True)
    return [value if visits else 0.0 for value, visits in rows]


def _visits(tree: Any, ended: list[bool], node: int = 0, path: str = "") -> Iterator[tuple[str, list[int]]]:
    visits = tree.children_visits[0, node].tolist()
    if ended[int(tree.embeddings[0, node])] or not any(visits):
        return
    yield path, visits
    for action, child in enumerate(tree.children_index[0, node].tolist()):
        if child >= 0:
            yield from _visits(tree, ended, child, f"{path}/{action}")


@functools.cache
def _compiled(method: str, simulations: int, actions: int, considered: int) -> Callable[..., Any]:
    jax, mctx = importlib.import_module("jax"), importlib.import_module("mctx")
    jax.config.update("jax_enable_x64", True)
    numpy = jax.numpy

    def play(world: dict[str, Any]) -> Any:
        def step(_: Any, __: Any, action: Any, state: Any) -> Any:
            ended = (world["terminated"] | world["truncated"])[state]
            after = numpy.where(ended, state, world["next"][state, action])
            output = mctx.RecurrentFnOutput(
                reward=numpy.where(ended, 0.0, world["reward"][state, action]),
                discount=numpy.where(world["terminated"][after], 0.0, numpy.where(ended, 1.0, world["discount"])),
                prior_logits=numpy.log(world["prior"][after]),
                value=world["value"][after],
            )
            return output, after

        first = numpy.zeros(1, world["next"].dtype)
        root = mctx.RootFnOutput(
            prior_logits=numpy.log(world["prior"][first]), value=world["value"][first], embedding=first
        )
        key = jax.random.PRNGKey(0)
        if method == "puct":
            return mctx.muzero_policy(
                None,
                key,
                root,
                step,
                simulations,
                qtransform=functools.partial(_normalised, world),
                loop_fn=functools.partial(_with_range, world),
                dirichlet_fraction=0.0,
                pb_c_init=world["c_init"],
                pb_c_base=world["c_base"],
            )
        transform = functools.partial(
            mctx.qtransform_completed_by_mix_value,
            value_scale=world["gumbel_value_scale"],
            maxvisit_init=world["gumbel_visit_offset"],
        )
        with mock.patch.object(jax.random, "gumbel", lambda key, shape, dtype: world["noise"].reshape(shape)):
            return mctx.gumbel_muzero_policy(
                None,
                key,
                root,
                step,
                simulations,
                qtransform=transform,
                max_num_considered_actions=considered,
                gumbel_scale=world["gumbel_scale"],
            )

    return jax.jit(play)  # type: ignore[no-any-return]


def _normalised(world: dict[str, Any], tree: Any, node: Any) -> Any:
    numpy = importlib.import_module("jax.numpy")
    low, high = world.get("value_range", tree.extra_data)
    values, visits = tree.qvalues(node), tree.children_visits[node]
    found = numpy.where(visits > 0, visits * values, 0.0).sum() / numpy.maximum(visits.sum(), 1)
    untried = numpy.where(visits.sum() > 0, found, tree.raw_values[node])
    values = numpy.where(visits > 0, values, untried)
    normalised = numpy.where(high > low, (values - low) / (high - low), 0.5)
    return numpy.where(visits > 0, normalised, normalised - world["first_play_reduction"])


def _with_range(world: dict[str, Any], start: int, stop: int, simulate: Any, state: Any) -> Any:
    """mctx's loop, which also keeps the least and the greatest Q seen, in the extra data that a caller may attach to
    the tree."""
    jax = importlib.import_module("jax")
    numpy = jax.numpy

    def body(number: Any, state: Any) -> Any:
        key, tree = simulate(number, state)
        values = tree.children_rewards + tree.children_discounts * tree.children_values
        going = ~(world["terminated"] | world["truncated"])[tree.embeddings]
        seen = (tree.children_visits > 0) & going[:, :, None]
        low = numpy.minimum(tree.extra_data[:, 0], numpy.where(seen, values, numpy.inf).min((1, 2)))
        high = numpy.maximum(tree.extra_data[:, 1], numpy.where(seen, values, -numpy.inf).max((1, 2)))
        return key, tree.replace(extra_data=numpy.stack([low, high], axis=1))

    key, tree = state
    unseen = numpy.array([[numpy.inf, -numpy.inf]])
    return jax.lax.fori_loop(start, stop, body, (key, tree.replace(extra_data=unseen)))


def schedules() -> Iterator[tuple[int, int, list[int]]]:
    """mctx's sequential halving, as (considered, simulations, visits)."""
    halving = importlib.import_module("mctx._src.seq_halving")
    for considered in (1, 2, 3, 4, 6, 8, 16, 17):
        for simulations in (1, 2, 5, 16, 33, 64):
            yield considered, simulations, list(halving.get_sequence_of_considered_visits(considered, simulations))


if __name__ == "__main__":
    rows = [{**case, "mctx": by_mctx(case)} for case in cases()]
    played, halved = ("[\n" + ",\n".join(map(json.dumps, table)) + "\n]" for table in (rows, schedules()))
    GOLDEN.write_text(f'{{"cases": {played},\n"schedules": {halved}}}\n')
    print(f"{len(rows)} cases of mctx {importlib.import_module('mctx').__version__} in {GOLDEN}")
