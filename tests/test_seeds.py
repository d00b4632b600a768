from treeagent.types import derive_seed


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive_seed(0, "collect", "shop-1") == 8400792099348289214
    assert derive_seed(7) == 8333924190356522945
