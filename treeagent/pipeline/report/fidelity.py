"""The audit of a world model, for the terminal and as JSON."""

import json

from rich.console import Group
from rich.table import Table
from rich.text import Text

from treeagent.visible import visible
from treeagent.world_model.fidelity import Fidelity, Figures

_SHARES = ("observation_agreement", "observation_exact", "reward_accuracy", "termination_accuracy", "unreadable")
_ERRORS = ("reward_error", "transition_error")


def fidelity_json(found: Fidelity) -> str:
    """The audit as JSON in printable ASCII characters."""
    return json.dumps(found.to_json(), indent=2).replace("\x7f", r"\u007f")


def fidelity_table(found: Fidelity) -> Group:
    """The figures of an audit as a table, with sentences below it.

    The table has a row for all steps, one for the steps whose answers the history determines, one for each type of
    action, one for first observations, and one for each number of imagined steps in a row. The sentences give the error
    of imagined returns, the allowed share of imagined experience, and the bound of DreamGym's theorem 1.
    """
    table = Table("steps of", "number", *(name.replace("_", " ") for name in (*_SHARES, *_ERRORS)), box=None)
    lines: list[tuple[str, Figures | None]] = [
        ("all", found.overall),
        ("all that can be told", found.determined),
        *found.by_kind.items(),
        ("openings of tasks", found.openings),
        *((f"imagined step {depth} in a row", figures) for depth, figures in found.compounding.items()),
    ]
    for name, figures in lines:
        if figures is not None:
            shares = [f"{100 * getattr(figures, share):.1f} %" for share in _SHARES]
            errors = [f"{getattr(figures, error):.3f}" for error in _ERRORS]
            table.add_row(Text(visible(name)), str(figures.steps), *shares, *errors)
    cr = "not replayed" if found.cr is None else f"{found.cr:.2f}"
    note = (
        f"{found.episodes} episodes: imagined return {found.optimism:+.3f} above the real one, it or the end "
        f"wrong in {found.wrong_episodes:.0%}; CR {cr}; share of imagined experience at most {found.lambda_cap:.2f}"
    )
    note += (
        f"\nworst case of an update made in imagination: the model's errors cost it a return of "
        f"{found.bound.reward + found.bound.transition:.2f} (rewards {found.bound.reward:.2f}, transitions "
        f"{found.bound.transition:.2f}; DreamGym's theorem 1)"
    )
    return Group(table, Text(f"\n{note}"))
