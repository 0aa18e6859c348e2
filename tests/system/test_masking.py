import itertools
import os
import time

import pytest

from arenarl.config.load import load_config
from arenarl.system.errors import UserError, one_line
from arenarl.system.masking import is_secret_command, is_secret_name, mask, mask_variables, secret_in

SECRET = "hunter22-x"
NAMES = "DB_PASS GITHUB_PAT PGPASSWORD apiKey X-API-Key auth_token AWS_SECRET_ACCESS_KEY a-secret MYSQL_PWD".split()
FORMS = [
    "postgres://user:{}@host/db", "redis://:{}@host", "https://host/v1?api_key={}", "https://host/#access_token={}",
    "Server=h;Password={};Port=1", "host=h password={}", "https://hooks.slack.com/services/T0/{}", "sk-1{}",
    "Bearer 1{}", "github_pat_11{}",
]  # fmt: skip
PLACES = {  # a YAML with a place for a name and a value
    "judge.train.extra_body": "{{judge: {{train: {{extra_body: {{a: [{{'{}': '{}'}}]}}}}}}}}",
    "environment.search.web.parameters": "{{environment: {{search: {{web: {{parameters: {{'{}': '{}'}}}}}}}}}}",
    "environment.mcp.0.env": "{{environment: {{name: mcp, mcp: [{{command: [x], env: {{'{}': '{}'}}}}]}}}}",
    "environment.mcp.0.command": "{{environment: {{name: mcp, mcp: [{{command: [x, '--{}', '{}']}}]}}}}",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_config_with_a_secret_is_refused_without_repeating_it(tmp_path, place):
    cases = [(name, SECRET) for name in NAMES] + [("x", form.format(SECRET)) for form in FORMS]
    for name, value in cases:
        if place.endswith(".env"):
            name = name.replace("-", "_")
        (tmp_path / "run.yaml").write_text(PLACES[place].format(name, value))
        with pytest.raises(UserError, match="holds a key or a password") as error:
            load_config(tmp_path / "run.yaml")
        assert place in str(error.value) and SECRET not in str(error.value), error.value


def test_an_override_with_a_secret_is_refused_without_repeating_it(tmp_path):
    (tmp_path / "run.yaml").touch()
    for key, form in itertools.product(
        ("judge", "judge.train.api_key_variable", "judge.train.api_key", "judge.train.base_url", "policy.model",
         "data.source", "environment.mcp", "rl.steps", "wandb", "environment.search.web.parameters", "no_key"),
        FORMS,
    ):  # fmt: skip
        for value in (form.format(SECRET), f"[{form.format(SECRET)}]", f"{{x: '{form.format(SECRET)}'"):
            with pytest.raises(UserError) as error:
                load_config(tmp_path / "run.yaml", [f"{key}={value}"])
            assert SECRET not in str(error.value), error.value


def test_settings_that_only_look_like_secrets_are_accepted():
    plain = {
        "max_tokens": 4096, "enable_thinking": False, "eos_token": "</s>", "stop_token_ids": [1, 2], "gl": "us",
        "api_key_variable": "OPENAI_API_KEY", "token_limit": "long enough", "api_key": "EMPTY", "auth": "<from file>",
        "prompt_cache_key": "arenarl-judge", "pad_token": "[PADDING]",
        "url": "https://host/v1?q=1", "revision": "owner/name@0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    }  # fmt: skip
    assert secret_in("extra_body", plain) is None
    for command in (
        "uvx amap-mcp-server", "docker run -i -e GITHUB_TOKEN -v token-cache:/data image", "npx x --no-auth server",
        "python server.py --token-file /run/token --max-tokens 100000", 'sh -c "server --token $TOKEN"',
    ):  # fmt: skip
        assert not is_secret_command(command.split()), command
    assert not any(map(is_secret_name, ("PATH", "PWD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "HOME")))


def test_messages_hold_no_value_of_a_secret_variable_and_the_longest_goes_first(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name in NAMES:
        monkeypatch.setenv(name, SECRET + name)
    monkeypatch.setenv("DATABASE_URL", "postgres://user:secret-of-db@host/db")
    monkeypatch.setenv("SHORT_KEY", SECRET)  # a part of the others
    monkeypatch.setenv("PLAIN", "a value with / and spaces")
    message = " ".join([*os.environ.values(), "a%20value%20with%20%2F%20and%20spaces", "login secret-of-db failed"])
    assert mask(message).count("a value with") == 1
    mask_variables(["PLAIN"])
    masked = mask(message)
    assert not any(word in masked for word in (SECRET, "secret-of-db", "value", "%20"))
    assert all(f"<{name}>" in masked for name in [*NAMES, "SHORT_KEY", "PLAIN", "DATABASE_URL"])
    assert SECRET not in one_line(message) and mask("an ordinary line, key=value, rl.steps=5") == (
        "an ordinary line, key=value, rl.steps=5"
    )


@pytest.mark.parametrize("unit", [
    "x", "a=", "sk-", "-eyJ", "eyJaaaaaaaa.", "?a=", "?key=abcdef", "://", "a:", "https://u:p@h/", "Bearer ", "pwd=,",
])  # fmt: skip
@pytest.mark.parametrize("start", ["", "://"])
def test_the_time_to_mask_a_foreign_text_grows_with_its_length(unit, start):
    def seconds(length):
        text, begun = start + unit * (length // len(unit)), time.process_time()
        mask(text)
        return time.process_time() - begun

    assert seconds(40_000) < 8 * seconds(10_000) + 0.1
    assert len(one_line(start + unit * 100_000, 200)) <= 200
