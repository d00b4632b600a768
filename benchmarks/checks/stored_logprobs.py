"""Whether stored behaviour log-probabilities are those of the model. Recomputes the log-probabilities of 60 trees by a
plain forward pass of the warm checkpoint and prints the greatest difference, for actions and for training rows.

    python benchmarks/checks/stored_logprobs.py --run runs/quickstart
"""

import argparse
from itertools import islice
from pathlib import Path

import torch

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.learners.likelihood import token_logprobs
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.advantages import AdvantageConfig, advantage_rows, advantages

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a finished quickstart")
arguments = parser.parse_args()
torch.set_num_threads(1)
run = arguments.run
trees = list(islice(read_as(from_record, run / "trees", "collect"), 60))
ck = load_checkpoint(run / "checkpoints" / "warm")
pairs = []
stored = []
for t in trees:
    for path, n in t.walk():
        for e in n.edges:
            pairs.append((t.prompt_ids(path), e.action.token_ids))
            stored.append(e.action.logprobs)
got = token_logprobs(ck.model, pairs, 0.7)
d = max(abs(a - b) for x, y in zip(got, stored, strict=True) for a, b in zip(x, y, strict=True))
print(len(pairs), "actions; max |stored - recomputed| at T=.7:", d)
rows = [r for t in trees for r in advantage_rows(t, advantages([t], AdvantageConfig()))]
got = token_logprobs(ck.model, [(r.prompt_ids, r.completion_ids) for r in rows], 0.7)
print(
    "rows",
    len(rows),
    "max diff on trained tokens",
    max(abs(a - b) for g, r in zip(got, rows, strict=True) for a, b, m in zip(g, r.logprobs, r.mask, strict=True) if m),
)
tok = sum(sum(r.mask) for r in rows)
ma = sum(a for r in rows for a in r.advantages) / tok
print("mean advantage per trained token", ma, " sum|A|", sum(abs(a) for r in rows for a in r.advantages) / tok)
