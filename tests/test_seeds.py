from treeagent.types import derive_seed


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive_seed(0, "collect", "shop-1") == 8400792099348289214
    assert derive_seed(7) == 8333924190356522945


def test_every_part_and_its_place_count() -> None:
    seeds = {
        derive_seed(*parts) for parts in [(1,), (2,), (1, 2), (2, 1), (12,), ("a", 1), ("a1",), (1, "a"), ("",), ()]
    }
    assert len(seeds) >= 9  # () and ("",) are one
    assert all(0 <= seed < 2**63 for seed in seeds)
