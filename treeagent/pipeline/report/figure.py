"""The figure of a run's page: success against what it cost, one point a policy and mode, as SVG."""

import math
from collections.abc import Sequence
from html import escape

from treeagent.pipeline.report.describe import Row
from treeagent.visible import visible

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 150, 12, 42
"""Margins in pixels; labels of points may reach into the right one."""


def success_by_tokens(rows: Sequence[Row]) -> str:
    """An ``<svg>`` element: success with its 95 % interval over generated tokens a task, on a logarithmic axis. Empty
    if no row generated tokens. The page's style sheet gives it colours."""
    points = [
        (row["generated_tokens"] / row["tasks"], row)
        for row in rows
        if row.get("generated_tokens") and row.get("tasks") and "success_low" in row
    ]
    if not points:
        return ""
    low = math.floor(math.log10(min(tokens for tokens, _ in points)))
    high = max(math.ceil(math.log10(max(tokens for tokens, _ in points))), low + 1)

    def x(tokens: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(tokens) - low) / (high - low)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(share):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y(share) + 4, f"{share:.0%}", "end"))
    for power in range(low, high + 1):
        parts.append(f'<path class="grid" d="M{x(10**power):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(x(10**power), _HEIGHT - _BOTTOM + 16, f"{10**power:,}", "middle"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "generated tokens a task", "middle"))
    for tokens, row in points:
        at, label = x(tokens), f"{row['policy']} {row['mode']}"
        parts.append(f'<path class="whisker" d="M{at:.1f} {y(row["success_low"]):.1f}V{y(row["success_high"]):.1f}"/>')
        parts.append(f'<circle cx="{at:.1f}" cy="{y(row["success"]):.1f}" r="4"/>')
        parts.append(_text(at + 7, y(row["success"]) + 4, label, "start"))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Success by generated tokens a task">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(visible(words))}</text>'
