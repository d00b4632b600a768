"""Run transformers without its own progress bars, which would break ours, and without warnings that do not concern
users."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch off transformers' progress bars. Loading and saving each draw one, and no argument prevents it."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_old_names() -> Iterator[None]:
    """Suppress warnings about names that transformers 5.23 deprecates and that PEFT and TRL still use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".(is_)?gradient_checkpointing. is deprecated", FutureWarning)
        yield
