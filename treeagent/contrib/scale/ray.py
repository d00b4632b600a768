"""Run jobs on a Ray cluster, wherever it has room.

Each worker is a long-lived actor, which keeps the checkpoint and the environment of its last job loaded. If an actor is
lost, Ray runs its job again; this is safe, because a job writes its results to disk atomically.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from treeagent.config import RunConfig
from treeagent.contrib.scale.settings import Scale
from treeagent.pipeline.metrics import Emit
from treeagent.types import UserError, WorkerLost

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UserError(f"ray is missing ({error}): pip install 'treeagent[ray]'") from error


Job = TypeVar("Job")
Result = TypeVar("Result")
_TRIES = 3
"""Attempts at a job before the run stops, since the job itself may be what kills its workers."""
_POLL_SECONDS = 0.5
"""Seconds between two checks for events."""
_STORE_BYTES = 80 << 20
"""Bytes of shared memory of a cluster that is started here: trees and weights are exchanged by disk."""


class RayWorkers:
    """Workers like ``processes.Processes``, but as actors of a Ray cluster, which restarts lost ones."""

    def __init__(self, scale: Scale, count: int, config: RunConfig) -> None:
        """Join the cluster, or start one that ends with this process; this takes seconds."""
        self._count = count
        _connect(scale, count)
        options = {"num_cpus": 1, "num_gpus": scale.gpus_per_worker, "scheduling_strategy": "SPREAD"}
        self._actor = ray.remote(**options, max_restarts=-1, max_task_retries=_TRIES - 1)(_Worker)
        self._workers: list[Any] = []
        self._start()

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        if not self._workers:
            self._start()
        waiting, running = deque(jobs), dict[Any, tuple[Any, Job]]()

        def assign_job(worker: Any) -> None:
            if waiting:
                job = waiting.popleft()
                running[worker.run.remote(work, job, self._events, os.getcwd())] = worker, job

        try:
            for worker in self._workers:
                assign_job(worker)
            while running:
                done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                for event in self._events.get_nowait_batch(self._events.qsize()):
                    on_event(event)
                for reference in done:
                    worker, job = running.pop(reference)
                    result = _result(reference)
                    assign_job(worker)  # before the yield, since the caller may take a long time
                    yield job, result
        except BaseException:  # also GeneratorExit, if the caller stops early
            self.kill()
            raise

    def kill(self) -> None:
        """End the workers without waiting for running jobs."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []
        self._events.shutdown(force=True)

    close = kill

    def _start(self) -> None:
        # The queue runs on the machine of this process, whose loss would end the run in any case.
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._events = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": on_this_node})
        self._workers = [self._actor.remote() for _ in range(self._count)]


class _Worker:
    """The actor class."""

    def run(self, work: Callable[[Job, Emit], Result], job: Job, events: Queue, folder: str) -> Result:
        """Run a job in ``folder``, which relative paths refer to."""
        torch.set_num_threads(1)  # whatever threads says: that is a number for the workers of one machine
        try:
            os.chdir(folder)
        except OSError as error:
            raise UserError(
                f"a worker on {ray.util.get_node_ip_address()} cannot enter {folder}, where the run was started "
                f"({error.strerror}): all machines of the cluster want the same disk at the same place"
            ) from None
        return work(job, events.put)


def _connect(scale: Scale, count: int) -> None:
    if ray.is_initialized():
        return
    address, gpus = scale.address, scale.gpus_per_worker
    if address is not None:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if port.isdigit():  # checked first, because Ray itself would retry for minutes without a server there
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, logging_level=logging.WARNING)
        except OSError:
            raise UserError(
                f"no Ray cluster answers at --address {address}: start one by ray start --head, or leave it out"
            ) from None
        return
    options: dict[str, Any] = {"object_store_memory": _STORE_BYTES, "logging_level": logging.WARNING}
    ray.init(address="local", num_cpus=count, include_dashboard=False, **options)
    found = ray.cluster_resources().get("GPU", 0)
    if found < gpus:
        raise UserError(f"--gpus-per-worker is {gpus:g}, but this machine has {found:g} GPUs: correct it")


def _result(reference: Any) -> Any:
    """The worker's result. An exception of the job is raised, with its traceback as a note."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause: Exception = error.cause
        cause.add_note(str(error))
        raise cause from None
    except RayError as error:
        reason = str(error).strip().splitlines()[-1].split(". ")[0]
        raise WorkerLost(
            f"a worker was lost {_TRIES} times at the same job, the last time by this: {reason}; correct that, or take "
            "fewer workers if memory is short, then continue with --resume"
        ) from error
