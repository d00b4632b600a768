"""Independent random streams by name, from one seed."""

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part; equal parts give the equal seed on every machine."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1
