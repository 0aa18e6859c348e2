"""What pydantic finds wrong with what others wrote, in words."""

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """Where the first problem lies, if it lies within, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    return " ".join([".".join(map(str, first["loc"])), first["msg"]]).strip()
