"""How much V(s) says at each depth: its correlation with the mean return of the node's own subtree, its AUC for "a
success below", and how often it ranks siblings rightly.

    python benchmarks/checks/value_signal.py runs/quickstart collect
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from treeagent.search.node import path_return
from treeagent.search.record import from_record
from treeagent.store import read_as


def auc(s, labels):
    s, labels = np.array(s), np.array(labels, bool)
    if labels.all() or not labels.any():
        return float("nan")
    o = s.argsort()
    r = np.empty(len(s))
    r[o] = np.arange(1, len(s) + 1)
    return (r[labels].sum() - labels.sum() * (labels.sum() + 1) / 2) / (labels.sum() * (~labels).sum())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run", type=Path)
parser.add_argument("name", help="series of trees, such as collect")
arguments = parser.parse_args()
run, name = arguments.run, arguments.name
rows = defaultdict(list)
sib = defaultdict(list)
for tree in read_as(from_record, run / "trees", name):
    nodes = list(tree.walk())
    best = {}
    for path, node in nodes:
        g = path_return(path, tree.discount) if node.terminated else None
        for k in range(len(path) + 1):
            key = id(path[k - 1].child) if k else id(tree.root)
            b = best.setdefault(key, [0, 0, 0.0])
            if g is not None:
                b[0] += 1
                b[1] += g >= 0.999
                b[2] += g
    for path, node in nodes:
        b = best[id(node)]
        if not node.ended and b[0] >= 1:
            rows[len(path)].append((node.value, b[1] > 0, b[2] / b[0], b[0]))
        kids = [
            (e.child.value, best[id(e.child)][1] > 0)
            for e in node.edges
            if e.child is not None and not e.child.invalid and best[id(e.child)][0] > 0 and not e.child.ended
        ]
        good = [v for v, s in kids if s]
        bad = [v for v, s in kids if not s]
        if good and bad:
            sib[len(path)].append(np.mean([[1.0 * (g > b_) + 0.5 * (g == b_) for b_ in bad] for g in good]))
for d in sorted(rows):
    r = np.array([(a, b, c, w) for a, b, c, w in rows[d]], float)
    correlation = np.corrcoef(r[:, 0], r[:, 2])[0, 1] if len(r) > 2 else float("nan")
    siblings = np.mean(sib[d - 1]) if sib[d - 1] else float("nan")
    print(
        f"depth {d}: nodes {len(r):6d}  corr(V, mean return) {correlation:.2f}  "
        f"AUC(success below) {auc(r[:, 0], r[:, 1]):.2f}  "
        f"among siblings of depth {d}: {siblings:.2f} ({len(sib[d - 1])})"
    )
