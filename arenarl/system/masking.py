"""One rule for what is secret, by name and by form, for configs, environment variables and messages.

A config never holds a key: `config.checks` refuses a value in which `secret_in` finds one, because configs are written
to the run folder and to W&B. `mask` removes the values of variables that have key-like names or that a config names,
and all text with the form of a key. Error lines, tracebacks and API errors pass through it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

_MIN_REPLY = 8  # characters; a shorter key, such as EMPTY for a local server, may be a word of a reply
_MIN_NAMED = 6  # characters of a secret with a key-like name, in configs and messages
_WORDS = frozenset(
    "key keys token tokens secret secrets password passwords passwd passphrase passcode pass pwd pat auth "
    "authorization bearer credential credentials creds cookie cookies dsn jwt sig signature".split()
)
_ENDINGS = ("key", "token", "secret", "password", "passwd", "pwd", "pass", "credentials")  # PGPASSWORD, apikey
# last words of names that only describe a key
_ABOUT = frozenset(
    "file path dir folder name variable parameter type limit count size url uri host sock mode format rate".split()
)
_PLAIN_KEYS = frozenset("cache foreign group primary prompt sort".split())  # prompt_cache_key is not a secret
_PATHS = ("PWD", "OLDPWD")  # the shell's working folder, not passwords
# Foreign texts pass through these patterns: look-aheads are bounded, so that the time grows with a text's length
_URL_LOGIN = re.compile(r"(?<=://)[^\s/?#'\":]*:[^\s/?#'\"]+(?=@)|(?<=://)[^\s/?#@:'\"]{16,}(?=@)")
_QUERY = re.compile(r"(?:^|[?&;#])([\w.-]+)=(?=([^\s&#;'\"]{1,4096}))")  # of an address, or of a connection string
_PASSWORD = re.compile(r"(?<![\w.])(?:password|passwd|pwd)=([^\s&#;'\"(),]{6,})", re.IGNORECASE)
_ASSIGNMENT = re.compile(  # NAME=value, "name": "value", a header; the value is looked at, not read over
    r"""(?<![\w.-])["']?([\w.-]+)["']?\s*[:=]\s*(?=["']?(?:(?:bearer|basic|token)\s+)?([^\s"',;&]+))""", re.IGNORECASE
)
_OPTION = re.compile(r"""(?<!\S)--?(?!no-)(\w[\w-]*)\s+["']?([^\s"'-][^\s"']*)""")
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk)[-_](?=[\w-]{0,80}\d)[\w-]{8,}|(?:gh[oprsu]|hf|npm|r8|gsk|jina)_[A-Za-z0-9]{12,}"
    r"|(?:github_pat_|glpat-|xox[a-z]-|xapp-|pypi-|nvapi-|tvly-|pplx-|xai-|lsv2_|glsa_|dop_v1_)[\w-]{12,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{12,}|SG\.[\w.-]{16,}|dapi[0-9a-f]{16,}"
    r"|eyJ[\w-]{8,500}+\.[\w.-]{8,})|(?<=[Bb]earer )(?=\S*\d)[\w.~+/=-]{8,}|(?<=[Bb]asic )(?=\S*\d)[\w+/=]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|(?<=hooks\.slack\.com/services/)\S{8,}|(?<=/api/webhooks/)\S{8,}"
)
# placeholders, flags and paths
_NOT_SECRET = re.compile(r"<.*>|\[.*\]|\*+|\$.*|true|false|null|none|(?:\.{0,2}|~)/[\w./-]*", re.IGNORECASE)
_named: set[str] = set()  # variables that a loaded config names


def is_secret_name(name: str) -> bool:
    """True if values of this name are keys or passwords.

    >>> [name for name in ("DB_PASS", "GITHUB_PAT", "apiKey", "PGPASSWORD", "X-API-Key", "PATH", "max_tokens",
    ...                    "api_key_variable", "KEY_FILE") if is_secret_name(name)]
    ['DB_PASS', 'GITHUB_PAT', 'apiKey', 'PGPASSWORD', 'X-API-Key', 'max_tokens']
    """
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not words or words[-1] in _ABOUT or name in _PATHS:
        return False
    key_like = {word for word in words if word in _WORDS or word.endswith(_ENDINGS)}
    return bool(key_like) and not (key_like <= {"key", "keys"} and _PLAIN_KEYS.intersection(words))


def secret_in(name: str, value: Any, is_secret: bool = False) -> str | None:
    """Return the dotted place of the first secret in a mapping or list from a user, else None.

    `is_secret` says that the name is key-like. `max_tokens: 4096` is not a secret; a long PIN under a key-like name is.
    """
    is_secret = is_secret or is_secret_name(name.rpartition(".")[2])
    if isinstance(value, Mapping):
        is_header = is_secret_name(str(value.get("name", "")))
        inner = [(str(key), part, is_secret or (is_header and key == "value")) for key, part in value.items()]
    elif isinstance(value, list):
        inner = [(str(number), part, is_secret) for number, part in enumerate(value)]
    else:
        is_secret = is_secret and _is_value(name, str(value))
        return name if is_secret or has_form_of_secret(str(value)) or is_random(str(value)) else None
    places = (secret_in(f"{name}.{key}", part, flag) for key, part, flag in inner)
    return next(filter(None, places), None)


def _is_pair(name: str, text: str) -> bool:
    return is_secret_name(name) and _is_value(name, text)


def _is_value(name: str, text: str) -> bool:
    """True if the value of a key-like name is a secret, and not a placeholder, a flag, a path or a number of tokens."""
    is_count = text.isdecimal() and name.lower().endswith(("token", "tokens"))
    return len(text) >= _MIN_NAMED and not is_count and not _NOT_SECRET.fullmatch(text) and not os.path.exists(text)


def is_random(text: str) -> bool:
    """True for a long word that changes between letters and digits more often than names do.

    >>> is_random("9f8e7d6c5b4a3f2e1d0c"), is_random("OPENAI_API_KEY_OF_TEAM_2"), is_random("modelcontextprotocol2025")
    (True, False, False)
    """
    changes = re.findall(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])", text)
    return len(changes) >= 4 and re.fullmatch(r"\w{16,}", text, re.ASCII) is not None


def has_form_of_secret(text: str) -> bool:
    """True if a text holds a login or a key in an address, or a key of a known service."""
    return bool(_parts(text))


def is_secret_command(words: Sequence[str]) -> bool:
    """True if a word of a command holds a secret.

    >>> commands = "server --token abcdefgh", "docker -e DB_PASS=abcdefgh x", "npx x --header 'X-API-Key: abcdefgh'"
    >>> [is_secret_command(command.split()) for command in commands]
    [True, True, True]
    >>> is_secret_command(["sh", "-c", 'server --token "$TOKEN"']), is_secret_command("docker run -e TOKEN x".split())
    (False, False)
    """
    line = " ".join(words)
    pairs = [match.groups() for pattern in (_ASSIGNMENT, _OPTION) for match in pattern.finditer(line)]
    is_named = any(_is_pair(name, value) for name, value in pairs)
    return is_named or has_form_of_secret(line) or any(map(is_random, words))


def mask_variables(names: Iterable[str]) -> None:
    """Mask the values of these environment variables from now on, whatever their names are."""
    _named.update(names)


def mask(text: str) -> str:
    """Replace secrets in a message by `<VARIABLE>`, or by `***` if no environment variable holds them."""
    text = replace_values(text, {value: f"<{name}>" for name, value in _secret_variables()}, _MIN_NAMED)
    for part in sorted({*_parts(text)}, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def replace_values(text: str, labels: Mapping[str, str], shortest: int = _MIN_REPLY) -> str:
    """Replace each value by its label, the longest first: a value may be a part of another value."""
    for value in sorted(labels, key=len, reverse=True):
        if len(value) >= shortest:
            for form in dict.fromkeys((value, quote(value, safe=""))):  # an address holds the second
                text = text.replace(form, labels[value])
    return text


def _secret_variables() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        value = value.strip()
        if name in _named or _is_pair(name, value):
            yield name, value
        for part in _parts(value):
            yield name, part
            yield name, part.partition(":")[2]  # the password of user:password


def _parts(text: str) -> list[str]:
    """Return the parts of a text that have the form of a secret: logins in addresses, key-like parameters of
    addresses, and keys with the prefixes of known services."""
    pairs = [value for name, value in _QUERY.findall(text) if _is_pair(name, value)]
    logins = [part for part in _URL_LOGIN.findall(text) if not _NOT_SECRET.fullmatch(part)]
    return [*logins, *pairs, *_PASSWORD.findall(text), *_FORMS.findall(text)]
