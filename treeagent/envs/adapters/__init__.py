"""Environments and tools that others wrote, behind our contract."""

import importlib
from typing import Any

from treeagent.types import UserError


def required(package: str) -> Any:
    """The package that an extra of the same name brings.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is missing ({error}): pip install 'treeagent[{package}]'") from error
