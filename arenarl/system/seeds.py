"""Seeds: all randomness derives from a run's `seed` and a purpose, through a hash that is stable across machines."""

import hashlib


def stable_seed(*parts: object) -> int:
    """Return a 63-bit seed from the `repr` of `parts`, equal in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
