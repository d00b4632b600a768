"""What a worker process runs. Apart from ``processes``, so that a worker has its lifeline before it imports torch."""

import multiprocessing
import os
import pickle
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from treeagent.envs.lifeline import die_with_parent
from treeagent.search.growth import describe


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a job: its result or its error."""

    result: Any = None
    error: Exception | None = None


def serve(pipe: Connection) -> None:
    """The main function of a worker process: run jobs until the pipe closes. The first message is no job; it says that
    the parent has started this process and writes nothing more to the pipe of multiprocessing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError, ConnectionError):
        pipe.recv()
        parent = multiprocessing.parent_process()
        assert parent is not None
        die_with_parent(parent.sentinel, os.getpid())
        import torch

        torch.set_num_threads(1)  # for small models, more threads cost more time than they save
        while True:
            work, job = pipe.recv()
            try:
                ended = Ended(work(job, pipe.send))
                pickle.dumps(ended)  # an error of pickling is reported from here; inside send it would end this process
            except Exception as error:
                ended = Ended(error=_portable(error))
            pipe.send(ended)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, since tracebacks cannot be pickled. An error that cannot be pickled
    either becomes a RuntimeError with the same text."""
    told = traceback.format_exc()
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # a class of the user's environment may raise anything while it is pickled
        same = False
    kept = error if same else RuntimeError(describe(error))
    kept.add_note(told)
    return kept
