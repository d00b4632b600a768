import subprocess
import sys

import pytest
from pydantic import ValidationError

from treeagent.learners.config import DPOConfig, GRPOConfig, SFTConfig


def test_reading_settings_imports_no_torch() -> None:
    code = "import sys, treeagent.learners.config; sys.exit('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cispo_caps_the_ratio_at_five_and_refuses_a_clip_range() -> None:
    assert GRPOConfig(loss_type="cispo").clip_high == 5.0
    assert GRPOConfig(loss_type="dapo").clip_high == 0.28
    with pytest.raises(ValidationError, match="would shrink every ratio"):
        GRPOConfig(loss_type="cispo", epsilon_high=0.28)


def test_a_cap_that_would_do_nothing_is_refused() -> None:
    assert GRPOConfig(delta=4.0).delta == 4.0
    with pytest.raises(ValidationError, match="delta"):
        GRPOConfig(loss_type="cispo", delta=4.0)


def test_each_loss_term_has_a_weight() -> None:
    with pytest.raises(ValidationError, match="one weight for each term"):
        DPOConfig(loss_type=("sigmoid",))


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="Unexpected keyword"):
        SFTConfig(lr=1e-3)  # type: ignore[call-arg]  # the mistake under test
