"""Makes the rows of an update in one of several processes. Writes what this process then holds, and which tasks it
read."""

import pickle
import sys
from pathlib import Path

from accelerate import PartialState

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.pipeline import rows

job_file, out = map(Path, sys.argv[1:])
state = PartialState(cpu=True) if out.name != "alone" else None
job, returns = pickle.loads(job_file.read_bytes())
job.scratch.mkdir(exist_ok=True)
made = rows.training_rows(job, load_checkpoint(job.checkpoint), returns)
rank = state.process_index if state else 0
parts = {path.name: path.stat().st_size for path in job.scratch.glob(f"rows-{rank}")}
out.mkdir(exist_ok=True)
(out / str(rank)).write_bytes(pickle.dumps((list(made.rows), made.values, parts)))
