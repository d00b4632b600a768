"""The cost of searches, by hand."""

import time

from treeagent.generators.base import Usage
from treeagent.pipeline.metrics import Event, heartbeat


def test_a_job_tells_its_tokens_while_one_call_of_the_model_lasts() -> None:
    usage, events = Usage(generated_tokens=50), list[Event]()
    with heartbeat(events.append, "evaluate-base-greedy", 3, usage):
        usage.generated_tokens += 7
        deadline = time.monotonic() + 20
        while not events and time.monotonic() < deadline:
            time.sleep(0.05)
    assert (events[0].index, events[0].tokens) == (3, 7)
