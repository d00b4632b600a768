"""What judged the ends of episodes, what that cost, and whether it agrees with the verifier and with people."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from treeagent.visible import visible

_GROUPS = ("tier/", "judge/", "agreement/")


def judging_section(metrics: Sequence[Mapping[str, Any]]) -> str:
    """A table of the figures of each stage that asked a judge or tiers; empty where none did."""
    stages: dict[str, dict[str, float]] = {}
    for row in metrics:
        if figures := {name: value for name, value in row.items() if name.startswith(_GROUPS)}:
            stages.setdefault(str(row["stage"]), {}).update(figures)
    if not stages:
        return ""
    names = sorted({name for figures in stages.values() for name in figures}, key=_order)
    heads = "".join(f"<th>{escape(visible(stage))}</th>" for stage in stages)
    body = ""
    for name in names:
        cells = "".join(f"<td>{_number(figures.get(name))}</td>" for figures in stages.values())
        body += f'<tr><td class="word">{escape(visible(name))}</td>{cells}</tr>'
    return (
        '<h2>Who judged the ends</h2><div class="card"><table><thead><tr><th class="word">figure</th>'
        f"{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p>tier: share of ends that it decides. agreement: share of equal words on success, and Cohen's κ.</p>"
    )


def _order(name: str) -> tuple[int, str]:
    return next(place for place, group in enumerate(_GROUPS) if name.startswith(group)), name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
