"""Methods on the tiny random policy."""

import pytest
from methods import Method


@pytest.fixture
def method(policy_path, model, tokenizer, compact, tmp_path):
    def make(name, *overrides, **options):
        return Method(policy_path, model, tokenizer, compact, tmp_path, name, *overrides, **options)

    return make
