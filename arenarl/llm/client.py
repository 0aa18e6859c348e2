"""Calls LLMs behind OpenAI-compatible APIs: for judges, query rubrics, simulated tools and closed policies alike.

`ask` wants JSON by a pydantic model and ends as an instance of it, or as None: never as a guess. A reply that does not
parse is asked for once more with the error. `complete` takes whatever a policy replies. Timeouts, 429, 5xx and what is
no completion are tried again with growing pauses for `patience_s`. All calls of a process share one limit; replies are
kept in the store, so the same call is paid for once. What no further call can mend (a refused key, a redirect, a spent
budget, nobody answered for `patience_s`, too many failures) sets `stop_reason`: from then on no call is made, and the
run saves and stops.
"""

import asyncio
import email.utils
import json
import math
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.llm.completion import Completion, NoCompletion, check_tool_calls, read_completion
from arenarl.llm.json_reply import ends_with_an_object, parse_reply
from arenarl.llm.prompts import quotable
from arenarl.llm.reply_store import ReplyStore, Spent, StoredReply, reply_key, run_of
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.event_loops import InFlight, LoopThread
from arenarl.system.progress import process_count, process_rank
from arenarl.trajectory import text_of

if TYPE_CHECKING:
    import openai

Message = dict[str, Any]
Parsed = TypeVar("Parsed", bound=BaseModel)
Read = TypeVar("Read")

OPENAI_URL = "https://api.openai.com/v1"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
WINDOW, FEWEST = 200, 50  # verdicts over which the share of failures is taken, and how many it takes to judge by
_RETRIED_STATUS = (408, 409, 429)  # and all from 500
_REFUSES_ALL = (401, 402, 403, 404, 405, 407, 410)  # a key, an account, a path, a proxy: no other call fares better
_FLAGS = 403  # of a model that answers others: OpenRouter and firewalls say so of a single prompt
_NO_MONEY = re.compile(
    r"arrearage|good standing|credit balance|insufficient (?:account )?(?:balance|credit|fund)", re.IGNORECASE
)
# what Alibaba, Anthropic and others say with status 400 of an account that cannot pay
_SAID = 500  # characters that are shown of what an API says of an error
# characters of what is kept secret; a shorter one, such as EMPTY for a server of one's own, may be a word of a reply
_SHORTEST_KEY = 8


class RunStopped(UserError):
    """The run cannot go on with its LLMs; what it has so far is sound."""


@dataclass(frozen=True)
class NoReply:
    """Why a call brought none. A refusal is the API's answer to this very request: too long, filtered, malformed."""

    reason: str
    is_refusal: bool = False


@dataclass
class Usage:
    """Counts of one process since they were last taken."""

    verdicts: int = 0  # and other replies asked for, from the store or not
    failed: int = 0  # of these without a reply, or without one that parses
    unreadable: int = 0  # replies that do not parse; each is asked for again once
    from_store: int = 0  # replies that had been paid for before
    calls: int = 0  # replies paid for
    retries: int = 0  # attempts that ended in a timeout, 429, 5xx, a cut connection or no completion
    tokens_in: int = 0
    tokens_out: int = 0
    # replies paid for whose tokens the API does not say, or not believably; their cost is the most it can be
    unknown_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


class LLMClient:
    """All LLM calls of a process, in an event loop of its own.

    Args:
        limits: `judge.concurrency`, which the processes share evenly, the store, the budget.
        stage: <run>/<stage>, under which the store counts what was paid; the limits are the run's.
        keys: by the name of its environment variable, from `read_keys`.
        log: a file that gets a line for every verdict that was had, or None.
    """

    def __init__(
        self,
        limits: JudgesConfig,
        stage: str,
        keys: dict[str, str],
        processes: int = 1,
        rank: int = 0,
        log: Path | None = None,
    ):
        import openai  # only here: it takes a second, and most runs ask no LLM

        self.openai = openai
        self.limits, self.stage, self.keys, self.log = limits, stage, keys, log
        self.store = ReplyStore(Path(limits.store))
        self.usage = Usage()
        self.stop_reason: str | None = None
        self._slots = asyncio.Semaphore(
            max(1, limits.concurrency // processes + (rank < limits.concurrency % processes))
        )
        self._stopped = asyncio.Event()
        self._answered: set[tuple[str | None, str | None]] = set()  # addresses and models that have
        self._refused: set[tuple[str | None, str | None]] = set()  # and those that refuse even a short question
        self._apis: dict[tuple[str, str | None], openai.AsyncOpenAI] = {}
        self._in_flight: InFlight[StoredReply | NoReply] = InFlight()
        self._questions: InFlight[None] = InFlight()
        self._has_failed: deque[bool] = deque(maxlen=WINDOW)
        self._last_reply_at = time.monotonic()
        self._last_error = self._last_failure = ""
        self._thread = LoopThread("llm-client")

    async def ask(
        self,
        llm: LLMConfig,
        messages: Sequence[Message],
        reply_type: type[Parsed],
        again: str,
        repeat: int = 0,
        about: str = "",
    ) -> Parsed | None:
        """One call's reply, or None if none could be had.

        `again` is what a reply that does not parse is answered with, `{error}` in it; `repeat` tells apart calls that
        differ in nothing else; `about` names the call in the log.
        """
        form, read = _reply_form(llm, reply_type), partial(parse_reply, reply_type=reply_type)
        return await self._thread.run(self._made(self._ask(llm, messages, form, read, again, repeat, about)))

    async def ask_text(
        self,
        llm: LLMConfig,
        messages: Sequence[Message],
        read: Callable[[str], Read],
        again: str,
        repeat: int = 0,
        about: str = "",
    ) -> Read | None:
        """The same of a reply in whatever form the messages ask for: `read` makes something of its text, or raises
        ValueError. One that took all of `max_reply_tokens` may lack its end, and counts as unreadable."""
        return await self._thread.run(
            self._made(self._ask(llm, messages, {}, read, again, repeat, about, must_be_whole=True))
        )

    async def complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int = 0) -> StoredReply | NoReply:
        """The reply to a `chat_request`, whatever it says; its text is the API's message as JSON,
        with `finish_reason`."""
        return await self._thread.run(self._made(self._complete(llm, request, repeat)))

    def take_usage(self) -> tuple[Usage, Spent]:
        """What this process used since this was last called, and what the run has paid,
        over all its stages and restarts."""

        async def take() -> tuple[Usage, Spent]:
            taken, self.usage = self.usage, Usage()
            return taken, self.store.spent(self.stage)

        return self._thread.submit(take()).result()

    def report(self) -> str:
        """What `take_usage` says, as a line for the terminal."""
        usage, spent = self.take_usage()
        tokens = f"{usage.tokens_in:,} tokens in, {usage.tokens_out:,} out, cost {usage.cost:.2f}"
        if usage.unknown_tokens:
            tokens += (
                f"; {usage.unknown_tokens:,} replies do not say their tokens and are "
                "charged the most that they can have cost"
            )
        now = (
            f"LLM calls: {usage.calls:,} paid for ({tokens}), {usage.from_store:,} replies from the store, "
            f"{usage.failed:,} verdicts failed"
        )
        last = f" (the last: {self._last_failure})" if usage.failed else ""
        return f"{now}{last}; {run_of(self.stage)} so far: {spent.calls:,} calls, cost {spent.cost:.2f}"

    def check(self) -> None:
        """Raises RunStopped if the run is to stop: verdicts have been missing since."""
        if self.stop_reason:
            raise RunStopped(self.stop_reason)

    async def _made(self, call: Coroutine[Any, Any, Read]) -> Read:
        """What no call can mend stops the run too: tournaments take whatever is raised for a verdict that failed,
        and would go on without any."""
        try:
            return await call
        except Exception as error:
            self._stop(
                str(error)
                if isinstance(error, UserError)
                else f"no LLM can be called: {self._without_keys(_in_words(error))}"
            )
            raise

    async def _ask(self, llm, messages, form, read, again, repeat, about, must_be_whole=False) -> Any:
        self.usage.verdicts += 1
        conversation, error = list(messages), ""
        for _ in range(2):
            request = chat_request(llm, conversation, llm.max_reply_tokens, llm.temperature, **form)
            reply = await self._reply(llm, request, repeat, _content)
            if isinstance(reply, NoReply):
                error = reply.reason
                break
            is_cut = (reply.tokens_out or 0) >= llm.max_reply_tokens
            try:
                if is_cut and must_be_whole:
                    raise ValueError("it is cut off")
                parsed = read(reply.text)
                if is_cut and not ends_with_an_object(reply.text):
                    raise ValueError("it is cut off")
            except ValueError as problem:
                self.usage.unreadable += 1
                error = (
                    f"{problem} (it took all of max_reply_tokens={llm.max_reply_tokens})" if is_cut else str(problem)
                )
                # Anthropic's takes no empty one
                said = {"role": "assistant", "content": reply.text[:4000] if reply.text.strip() else "(nothing)"}
                conversation = [*messages, said, {"role": "user", "content": again.format(error=problem)}]
            else:
                self._note(False)
                self._write_log(about, conversation, parsed)
                return parsed
        self._note_failure(error)
        return None

    async def _complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int) -> StoredReply | NoReply:
        self.usage.verdicts += 1
        reply = await self._reply(llm, request, repeat, _whole_message)
        if isinstance(reply, NoReply):
            self._note_failure(reply.reason)
        else:
            self._note(False)
        return reply

    async def _reply(
        self, llm: LLMConfig, request: dict[str, Any], repeat: int, read: Callable[[Completion], str]
    ) -> StoredReply | NoReply:
        """The reply from the store, from a call under way, or from a call of its own, which `read` makes a text of."""
        key = reply_key(llm.base_url or OPENAI_URL, request, repeat)
        if stored := self.store.get(key):
            self.usage.from_store += 1
            return stored
        if self.limits.store_only:
            self._stop(
                f"judge.store_only: {self.limits.store} lacks a reply of {llm.model}; "
                "run it once without store_only, with a key"
            )
        if self.stop_reason:
            return NoReply(self.stop_reason)
        # who gives up waiting leaves the call, which is paid for, to the store
        return await self._in_flight.get(key, lambda: self._call(llm, request, key, read))

    async def _call(
        self, llm: LLMConfig, request: dict[str, Any], key: str, read: Callable[[Completion], str]
    ) -> StoredReply | NoReply:
        """Attempts until there is a reply. None comes if the API refuses this call,
        `patience_s` is over or the run is to stop."""
        started, pause_s, keeps_place = None, _FIRST_PAUSE_S, False
        async with AsyncExitStack() as place:
            while True:
                if not keeps_place:
                    await place.enter_async_context(self._slots)
                if self.stop_reason or not self._reserve():
                    return NoReply(self.stop_reason)
                started = started or time.monotonic()  # waiting for a place is not waiting for the API
                try:
                    completion = await self._attempt(llm, request)
                    text = read(completion)
                except Exception as error:  # noqa: BLE001 - sorted below; what the run cannot go on with sets stop_reason
                    self._settle(llm, request, error)
                    if (
                        getattr(error, "status_code", None) == _FLAGS
                        and (llm.base_url, llm.model) not in self._answered
                    ):
                        await self._questions.get((llm.base_url, llm.model), partial(self._ask_whether_it_answers, llm))
                    # so that not all come back at once
                    wait_s = self._pause_after(llm, error, pause_s * random.uniform(1.0, 1.5))
                    reason = self._last_error
                    # too many calls: another one in its place would be told the same
                    keeps_place = getattr(error, "status_code", None) == 429
                else:
                    self._last_reply_at = time.monotonic()
                    self._answered.add((llm.base_url, llm.model))
                    return self._keep(llm, request, key, completion, text)
                if not keeps_place:
                    await place.aclose()
                if wait_s is None:
                    return NoReply(reason, is_refusal=not self.stop_reason)
                left_s = started + llm.patience_s - time.monotonic()
                if left_s <= 0:
                    await self._give_up(llm, started)
                    return NoReply(reason)
                self.usage.retries += 1
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                try:
                    # the last attempt is made when patience ends
                    await asyncio.wait_for(self._stopped.wait(), min(wait_s, left_s))
                except TimeoutError:
                    pass

    async def _attempt(self, llm: LLMConfig, request: dict[str, Any]) -> Completion:
        async with asyncio.timeout(llm.timeout_s):
            response = await self._api(llm).chat.completions.with_raw_response.create(**request)
        return read_completion(response.content)

    def _pause_after(self, llm: LLMConfig, error: Exception, pause_s: float) -> float | None:
        """Seconds until the next attempt: `pause_s`, or more if the server asks for it; None if none can help."""
        self._last_error = self._without_keys(_in_words(error))[:_SAID] + _remedy(llm, error)
        if isinstance(error, self.openai.APIStatusError):
            where, status = llm.base_url or OPENAI_URL, error.status_code
            is_flagged = status == _FLAGS and (llm.base_url, llm.model) not in self._refused
            has_no_money = status in (400, _FLAGS) and _NO_MONEY.search(f"{error.code} {error}")
            if has_no_money or (status in _REFUSES_ALL and not is_flagged):
                self._stop(f"the API at {where} refuses calls to {llm.model}: {self._last_error}")
            elif status < 400:  # followed, it would tell the prompt to others, or end as another request
                target = self._without_keys(error.response.headers.get("location", "nowhere"))
                self._stop(
                    f"the API at {where} redirects calls ({status}) to {target}; "
                    "set base_url to the address that answers itself"
                )
            elif status >= 500 or status in _RETRIED_STATUS:
                asked_s = _asked_pause(error.response.headers.get("retry-after"))
                return max(pause_s, asked_s * random.uniform(1.0, 1.25))
            return None  # otherwise for this call alone: too long, or filtered
        if isinstance(error, TimeoutError | self.openai.APIConnectionError | self.openai.APIError | NoCompletion):
            return pause_s
        if isinstance(error, UnicodeEncodeError):  # half a surrogate in the request: it cannot be sent
            return None
        raise error

    async def _give_up(self, llm: LLMConfig, started: float) -> None:
        """The call has failed; if no other had a reply in all that time, and a short question has none now,
        the run has."""
        if self._last_reply_at < started:
            await self._questions.get((llm.base_url, llm.model), partial(self._ask_whether_it_answers, llm))
        if self._last_reply_at < started:
            url = llm.base_url or OPENAI_URL
            self._stop(f"no usable reply from {url} for {llm.patience_s:g} s; the last error: {self._last_error}")

    async def _ask_whether_it_answers(self, llm: LLMConfig) -> None:
        """A prompt that never gets a completion must not look like a dead server, nor one that is flagged like a
        refused key. The reply is paid for, not kept."""
        if self.stop_reason or not self._reserve():
            return
        request = chat_request(
            llm, [{"role": "user", "content": "Answer with one word: yes."}], llm.max_reply_tokens, llm.temperature
        )
        try:
            completion = await self._attempt(llm, request)
        except Exception as error:  # noqa: BLE001 - the call that gave up has said why there is no reply
            self._settle(llm, request, error)
            if getattr(error, "status_code", None) in _REFUSES_ALL:
                self._refused.add((llm.base_url, llm.model))
            if not isinstance(error, self.openai.BadRequestError):  # refused by a server that answers
                return
        else:
            self._charge(llm, request, completion.tokens)
            self._answered.add((llm.base_url, llm.model))
        self._last_reply_at = time.monotonic()

    def _settle(self, llm: LLMConfig, request: dict[str, Any], error: Exception) -> None:
        """Take the reserved call back, unless what came of it says that it was billed."""
        if isinstance(error, NoCompletion) and error.tokens:
            self._charge(llm, request, error.tokens)
        else:
            self.store.release(self.stage)

    def _keep(
        self, llm: LLMConfig, request: dict[str, Any], key: str, completion: Completion, text: str
    ) -> StoredReply:
        """An API may repeat a key in what it replies, too."""
        self._charge(llm, request, completion.tokens)
        tokens_in, tokens_out = completion.tokens or (None, None)
        # where the server's own room was less, or it counts nothing, the number does not tell
        if completion.finish_reason == "length":
            tokens_out = max(tokens_out or 0, request[llm.token_limit_name])
        reply = StoredReply(
            self._without_keys(text), self._without_keys(completion.model or llm.model), tokens_in, tokens_out
        )
        return self.store.put(key, reply)

    def _charge(self, llm: LLMConfig, request: dict[str, Any], known: tuple[int, int] | None) -> None:
        at_most = known or (len(json.dumps(request)), request[llm.token_limit_name])  # no token without a byte
        cost, (tokens_in, tokens_out) = llm.cost(*at_most), known or (0, 0)
        self.usage += Usage(
            calls=1, tokens_in=tokens_in, tokens_out=tokens_out, unknown_tokens=known is None, cost=cost
        )
        self.store.charge(self.stage, tokens_in, tokens_out, cost)

    def _reserve(self) -> bool:
        if not self.store.reserve(self.stage, self.limits.max_calls, self.limits.max_cost):
            spent = self.store.spent(self.stage)
            limit = "judge.max_calls" if spent.calls >= (self.limits.max_calls or float("inf")) else "judge.max_cost"
            used = f"{run_of(self.stage)} has paid for {spent.calls} calls, cost {spent.cost:.2f}"
            self._stop(f"{limit}={getattr(self.limits, limit[6:])} is used up: {used}")
        return not self.stop_reason

    def _note(self, has_failed: bool) -> None:
        self._has_failed.append(has_failed)
        share = sum(self._has_failed) / len(self._has_failed)
        if has_failed and len(self._has_failed) >= FEWEST and share > self.limits.max_failure_share:
            limit = f"judge.max_failure_share={self.limits.max_failure_share}"
            self._stop(
                f"{share:.0%} of the last {len(self._has_failed)} verdicts failed, "
                f"above {limit}; the last: {self._last_failure}"
            )

    def _note_failure(self, error: str) -> None:
        if not self.stop_reason:  # what comes after the stop tells nothing of the model
            self.usage.failed += 1
            self._last_failure = _one_line(self._without_keys(error))
            self._note(True)

    def _stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = _one_line(reason)
            self._stopped.set()

    def _api(self, llm: LLMConfig) -> "openai.AsyncOpenAI":
        endpoint = (llm.base_url or OPENAI_URL, llm.api_key_variable)
        if endpoint not in self._apis:
            key = self.keys.get(llm.api_key_variable or "", "none")
            try:
                http = self.openai.DefaultAsyncHttpxClient(follow_redirects=False, event_hooks={"response": [_as_utf8]})
            except Exception as error:
                # of socks:// without its package, a port that is none, certificates that are not there
                problem = f"no connection to {endpoint[0]} can be made: {_in_words(error)}"
                raise UserError(
                    f"{problem}; mend or unset HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
                ) from error
            self._apis[endpoint] = self.openai.AsyncOpenAI(
                base_url=endpoint[0], api_key=key, max_retries=0, timeout=None, http_client=http
            )
        return self._apis[endpoint]

    def _without_keys(self, text: str) -> str:
        """An API may repeat a key in what it says."""
        for key in self.keys.values():
            text = text.replace(key, "***") if len(key) >= _SHORTEST_KEY else text
        return text

    def _write_log(self, about: str, messages: Sequence[Message], parsed: Any) -> None:
        if self.log is not None:
            line = {"about": about, "messages": json_hash(messages), "reply": to_jsonable_python(parsed)}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(self._without_keys(json.dumps(line)) + "\n")


def usage_metrics(usage: Usage, spent: Spent) -> dict[str, float]:
    """What is logged of a step's LLM calls, and of what the run has paid for so far."""
    return {
        "judge/failed_verdicts": usage.failed,
        "judge/paid_calls": usage.calls,
        "judge/stored_replies": usage.from_store,
        "judge/retries": usage.retries,
        "judge/tokens_in": usage.tokens_in,
        "judge/tokens_out": usage.tokens_out,
        "judge/unknown_tokens": usage.unknown_tokens,
        "judge/cost": usage.cost,
        "judge/total_calls": spent.calls,
        "judge/total_cost": spent.cost,
    }


def open_client(
    llms: Iterable[LLMConfig], limits: JudgesConfig, stage: str, folder: Path | None = None
) -> LLMClient | None:
    """The way to all LLMs among `llms`, with this process's share of the limits; None if there is none. With a
    `folder`, every verdict is logged there.

    Raises:
        UserError: a key's environment variable is not set.
    """
    llms = [llm for llm in llms if llm.name == "llm"]
    if not llms:
        return None
    rank = process_rank()
    keys = {} if limits.store_only else read_keys(llms)
    return LLMClient(limits, stage, keys, process_count(), rank, folder / f"verdicts-{rank}.jsonl" if folder else None)


def read_keys(llms: Sequence[LLMConfig]) -> dict[str, str]:
    """The keys that these LLMs need, by the name of their environment variable.

    Raises:
        UserError: a variable is not set, or holds what cannot stand in a header.
    """
    keys = {}
    for llm in llms:
        if name := llm.api_key_variable:
            keys[name] = os.environ.get(name, "").strip()
            if not keys[name]:
                raise UserError(
                    f"set the environment variable {name} to the key for {llm.base_url or OPENAI_URL}, for {llm.model}"
                )
            if not (keys[name].isascii() and keys[name].isprintable()):
                raise UserError(
                    f"the environment variable {name} holds characters that no key has; set it to the key alone"
                )
    return keys


def chat_request(
    llm: LLMConfig, messages: Sequence[Message], max_tokens: int, temperature: float | None, **fields: Any
) -> dict[str, Any]:
    """The body of a chat completion, and with it all that the reply depends on.
    A model whose temperature is null is sent none."""
    request: dict[str, Any] = {
        "model": llm.model,
        "messages": list(messages),
        llm.token_limit_name: max_tokens,
        **fields,
    }
    if llm.temperature is not None:
        request["temperature"] = temperature
    if llm.extra_body:
        request["extra_body"] = llm.extra_body
    return request


def _reply_form(llm: LLMConfig, reply_type: type[BaseModel]) -> dict[str, Any]:
    """The fields of a request that hold the model to the reply's form."""
    if llm.reply_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    if llm.reply_format == "json_schema":
        schema = {"name": reply_type.__name__, "strict": True, "schema": _schema(reply_type)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    cause = f" ({error.__cause__!r})" if error.__cause__ else ""  # a connection error alone says nothing
    return f"{type(error).__name__}: {error}{cause}"


def _remedy(llm: LLMConfig, error: Exception) -> str:
    """What to change, where the error tells. That a prompt is too long is said in words alone:
    vLLM's, OpenAI's and others' have these."""
    status = getattr(error, "status_code", None)
    if isinstance(error, TimeoutError):
        return f"; raise timeout_s={llm.timeout_s:g}, or lower judge.concurrency"
    if status == 404:
        return "; set model to a name that the API serves, base_url to its address"
    if status in (401, 403) and llm.api_key_variable:
        return f"; set {llm.api_key_variable} to a key that may ask this model"
    if status in (400, 422) and re.search(r"response_?format|json_schema|json_object", str(error)):
        return "; set reply_format to json_object or none"
    if status in (400, 413, 422) and re.search(
        r"context.length|max_model_len|too long|maximum.{0,40}tokens", str(error), re.IGNORECASE
    ):
        return (
            "; lower max_reply_tokens or what a prompt shows (a judge's max_result_chars, max_text_chars), "
            "or serve with a larger --max-model-len"
        )
    return ""


def _one_line(text: str) -> str:
    """What is said in the terminal of an error."""
    return " ".join(quotable(text).split())[:1000]


async def _as_utf8(response: Any) -> None:
    """Whatever charset a server names: some raise, and some take time in the square of a text's length."""
    response.encoding = "utf-8"


def _asked_pause(retry_after: str | None) -> float:
    """Seconds that a server asks for, by their number or by a date; 0 for what is neither."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _content(completion: Completion) -> str:
    return text_of(completion.message.get("content"))


def _whole_message(completion: Completion) -> str:
    check_tool_calls(completion)
    return json.dumps({"finish_reason": completion.finish_reason, **completion.message})


_schema = lru_cache(lambda reply_type: reply_type.model_json_schema())
