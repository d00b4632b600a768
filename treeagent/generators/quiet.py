"""transformers without its own progress bars, which would break ours, and without warnings that are not for users."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Loading and saving draw one each and take no option against it."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_old_names() -> Iterator[None]:
    """PEFT and TRL still use names that transformers 5.23 deprecates."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".(is_)?gradient_checkpointing. is deprecated", FutureWarning)
        yield
