"""How often search ranks siblings the wrong way round. Among siblings of which one leads to a success found in the
tree and the other to known failures only, it counts those whose Q or visits disagree, and prints the advantages that
refused calls get.

    python benchmarks/checks/inverted_siblings.py --run runs/quickstart
"""

import argparse
import statistics as st
from collections import Counter
from itertools import combinations
from pathlib import Path

from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.advantages import AdvantageConfig, advantages

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a finished quickstart")
arguments = parser.parse_args()
trees = list(read_as(from_record, arguments.run / "trees", "collect"))


def real_best(edge):
    n = edge.child
    if n is None:
        return None
    if n.terminated:
        return edge.reward
    vals = [v for e in n.edges if e.child is not None and (v := real_best(e)) is not None]
    return max(vals) if vals else None


c = Counter()
gaps = []
for t in trees:
    for n in t.nodes():
        es = [e for e in n.edges if e.visits]
        for a, b in combinations(es, 2):
            ra, rb = real_best(a), real_best(b)
            if ra is None or rb is None:
                continue
            if (ra >= 1 - 1e-9) == (rb >= 1 - 1e-9):
                continue
            if rb > ra:
                a, b = b, a
            g = a.value - b.value
            c["success vs known failure siblings"] += 1
            c["gap>=.2"] += g >= 0.2
            c["0<=gap<.2"] += 0 <= g < 0.2
            c["gap<0"] += g < 0
            c["success edge has fewer visits"] += a.visits < b.visits
            if a.child.terminated:
                c["success edge terminal"] += 1
                c["..terminal & fewer visits"] += a.visits < b.visits
print(dict(c))
inv = []
for t in trees:
    sc = advantages([t], AdvantageConfig())
    for n in t.nodes():
        for e in n.edges:
            if e.child is not None and e.child.invalid and id(e) in sc:
                inv.append(
                    (e.value, sc[id(e)], n.value, e.child.state.messages[-1].content, e.action.text, len(n.edges))
                )
print(
    "invalid: mean Q",
    st.mean(x[0] for x in inv),
    "mean adv",
    st.mean(x[1] for x in inv),
    "mean V(parent)",
    st.mean(x[2] for x in inv),
)
print(Counter(x[3][:30] for x in inv).most_common(12))
for x in sorted(inv, key=lambda x: -x[1])[:6]:
    print(x)
