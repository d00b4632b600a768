import io

from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.pipeline.terminal import Terminal


def work(progress: Progress) -> None:
    with progress.track("collect", 4) as advance:
        advance(1, {"simulations/s": "12.5"})
        with progress.track("batch [1]", 2) as advance_inner:
            advance_inner(2)
        advance(3)


def test_without_a_terminal_it_writes_plain_lines() -> None:
    stream = io.StringIO()
    work(RichProgress(Terminal(file=stream, width=100)))
    assert stream.getvalue().splitlines() == [
        "collect 0/4 0 s", "batch [1] 0/2 0 s", "batch [1] 2/2 0 s", "collect 4/4 0 s simulations/s 12.5",
    ]  # fmt: skip
