import subprocess
import sys

import pytest
from pydantic import ValidationError

from treeagent.learners.config import DPOConfig


def test_reading_settings_imports_no_torch() -> None:
    code = "import sys, treeagent.learners.config; sys.exit('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_loss_term_has_a_weight() -> None:
    with pytest.raises(ValidationError, match="one weight for each term"):
        DPOConfig(loss_type=("sigmoid",))
