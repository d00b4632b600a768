"""How refused calls score in the trees of a quickstart: how many there are, how often V after them exceeds V before,
and how many get a positive advantage or are preferred in a pair.

    python benchmarks/checks/refused_calls.py --run runs/quickstart
"""

import argparse
from collections import Counter
from pathlib import Path

from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.pairs import PairConfig, preference_pairs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a finished quickstart")
arguments = parser.parse_args()
trees = list(read_as(from_record, arguments.run / "trees", "collect"))
c = Counter()
for t in trees:
    sc = advantages([t], AdvantageConfig())
    byid = {id(e): e for n in t.nodes() for e in n.edges}
    refused = {i for i, e in byid.items() if e.child is not None and e.child.invalid}
    parent = {id(e): n for n in t.nodes() for e in n.edges}
    for i in refused:
        e, n = byid[i], parent[i]
        c["refused calls"] += 1
        c["grown beyond"] += bool(e.child.edges)
        c["visits>1"] += e.visits > 1
        c["V(after) > V(before): same place, one step fewer"] += e.child.value > n.value + 1e-6
        c[".. by more than .1"] += e.child.value > n.value + 0.1
        a = sc.get(i, 0)
        c["A>0"] += a > 0
        c["A>.1"] += a > 0.1
        # what search found truly reachable from this same place (siblings' finished ends)
    pos = [i for i, a in sc.items() if a > 0]
    c["positive edges"] += len(pos)
    c["positive tokens"] += sum(len(byid[i].action.token_ids) for i in pos)
    c["positive tokens of refused"] += sum(len(byid[i].action.token_ids) for i in pos if i in refused)
    for rule in ("best_vs_worst", "all"):
        c[f"pairs {rule}"] += sum(1 for _ in preference_pairs(t, PairConfig(rule=rule)))
    # edges are not in the pair: match by ids on the path
    for path, node in t.walk():
        ref = {e.action.token_ids for e in node.edges if id(e) in refused}
        if not ref:
            continue
        ids = t.prompt_ids(path)
        for rule in ("best_vs_worst", "all"):
            c[f"pairs {rule}: refused call preferred"] += sum(
                p.context_ids == ids and p.chosen.token_ids in ref for p in preference_pairs(t, PairConfig(rule=rule))
            )
for k, v in c.items():
    print(k, v)
