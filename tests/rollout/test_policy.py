"""The tiny policy: what its tokenizer must have room for."""

import pytest

from arenarl.rollout.policy import train_tokenizer
from arenarl.system.errors import UserError

TOOLS = [{"function": {"name": "find", "parameters": {"properties": {f"argument_{n}": {"type": "string"} for n in range(200)}}}}]


def test_a_vocabulary_without_room_for_the_tools_json_is_refused_with_the_least_there_is():
    with pytest.raises(UserError, match="policy.scratch.vocab_size=512: .* alone take 674; raise it"):
        train_tokenizer(["a b"], TOOLS, vocab_size=512)
    assert len(train_tokenizer(["a b"], TOOLS, vocab_size=674)) == 674
