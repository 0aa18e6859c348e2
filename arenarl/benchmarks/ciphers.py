"""How benchmarks hide their items from crawlers: XOR with a key from the record's canary, in base64.
Decrypted items stay on this machine."""

import base64
import binascii
import hashlib


def hashed_key_xor(text: str, canary: str) -> str:
    """BrowseComp's and BrowseComp-ZH's: the key is the canary's SHA-256, repeated.
    Raises ValueError where the result is no text."""
    return _xor(text, hashlib.sha256(canary.encode()).digest())


def raw_key_xor(text: str, canary: str) -> str:
    """xbench's: the key is the canary itself, repeated. Raises ValueError where the result is no text."""
    return _xor(text, canary.encode())


def _xor(text: str, key: bytes) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("it is not base64") from error
    return bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data)).decode("utf-8")
