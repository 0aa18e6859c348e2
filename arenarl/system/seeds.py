"""Seeds: everything random derives from a run's one `seed` and from what it is for,
by a hash that is the same everywhere."""

import hashlib


def stable_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable, the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
