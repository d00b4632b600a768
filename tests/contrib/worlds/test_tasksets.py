"""What the adapters of task sets share, without any of their packages."""

import pytest

from treeagent.contrib.worlds.tasksets import package, split_of
from treeagent.types import UserError


def test_a_missing_package_or_version_is_one_sentence_with_the_command() -> None:
    with pytest.raises(UserError, match=r"no-such 1 is needed \(.*no-such.*\): pip install no-such==1"):
        package("no_such", "no-such", "1", "no-such==1")
    with pytest.raises(UserError, match=r"pytest 1\.2 is needed \(version .* is installed\): pip install pytest==1\.2"):
        package("pytest", "pytest", "1.2", "pytest==1.2")
    assert package("pytest", "pytest", pytest.__version__.split(".")[0], "") is pytest


def test_splits_depend_on_the_id_alone() -> None:
    splits = [split_of(str(number)) for number in range(400)]
    assert [splits.count(each) for each in ("train", "validation", "test")] == [204, 104, 92]
