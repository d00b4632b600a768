"""What sharding the weights over processes costs: an update in two processes that hold them whole, and in two that
share them.

    .venv/bin/python -m benchmarks.sharding

A Llama with 21 million random weights imitates random rows on the CPU, with one thread per process and gloo. Growth is
the process's peak memory minus its memory before the update, when it holds the weights: gradients, Adam's state,
activations, the copy kept in case of divergence, and messages. Freed memory goes back to the system at once
(MALLOC_MMAP_THRESHOLD_).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
import yaml
from accelerate import PartialState
from tokenizers import Tokenizer, models
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.command import Figures, add_rounds, memory, options_digest, record_of, repeating
from benchmarks.record import ROOT
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.views.tokens import TokenRow

QUESTION = "What does an update take in two processes that hold the weights whole, and in two that share them?"
FSDP = Path(__file__).parents[1] / "configs" / "models" / "fsdp.yaml"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
STEPS, ROWS, TOKENS, VOCABULARY = 6, 2, 64, 4096


def compare() -> None:
    """Start the processes of each kind in turns, and record their figures."""
    arguments = repeating(__doc__, "sharding", rounds=3).parse_args()
    with record_of(arguments, QUESTION) as record, tempfile.TemporaryDirectory() as name:
        shared = Path(name) / "fsdp.yaml"
        shared.write_text(yaml.safe_dump(yaml.safe_load(FSDP.read_text()) | {"use_cpu": True}))
        kinds = {"whole": ["--multi_gpu", "--dynamo_backend=no"], "shared": [f"--config_file={shared}"]}

        def measure(_: int) -> Figures:
            found = {}
            for kind, how in kinds.items():
                launch = ["accelerate.commands.launch", *how, "--mixed_precision=no", "--main_process_port=0"]
                command = [sys.executable, "-m", *launch, "--num_processes=2", "--num_machines=1", __file__, name]
                # A program that is started by its path does not find the packages of this repository by itself.
                paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
                subprocess.run(command, check=True, env=os.environ | ENVIRONMENT | {"PYTHONPATH": paths})
                held, growth, seconds = json.loads((Path(name) / "told.json").read_text())
                found[kind] = {"held MiB": held / 2**20, "growth MiB": growth, "s / step": seconds}
            return found

        add_rounds(record, arguments.rounds, options_digest(arguments), list(kinds), measure)


def update(folder: Path) -> None:
    """Train, in each of the processes. The first process writes the figures to ``folder``."""
    torch.set_num_threads(1)
    leads = PartialState(cpu=True).is_main_process
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, "<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    ids = torch.randint(2, VOCABULARY, (2 * STEPS * ROWS, TOKENS)).tolist()
    rows = [TokenRow(f"task-{number}", tuple(row), (True,) * TOKENS, (), ()) for number, row in enumerate(ids)]
    config, times = SFTConfig(batch_size=ROWS, max_steps=STEPS), list[float]()
    train_sft(llama(layers=1, width=64), tokenizer, rows, config)  # warm-up: what a first update loads must not count
    model = llama(layers=10, width=384)
    before = memory("VmRSS")
    train_sft(model, tokenizer, rows, config, on_progress=lambda done, total: times.append(time.perf_counter()))
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in model.parameters()]
    seconds = statistics.median(after - start for start, after in pairwise(times[2:]))
    if leads:
        measured = sum(part.nbytes for part in parts), memory("VmHWM") - before, seconds
        (folder / "told.json").write_text(json.dumps(measured))


def llama(layers: int, width: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, intermediate_size=1024)
    return LlamaForCausalLM(shape)


if __name__ == "__main__":
    if "RANK" in os.environ:
        update(Path(sys.argv[1]))
    else:
        compare()
