"""Calls LLMs behind OpenAI-compatible APIs: for judges, query rubrics, simulated tools and closed policies alike.

`ask` wants JSON by a pydantic model and ends as an instance of it, or as None: never as a guess. A reply that does not
parse is asked for once more with the error. `complete` takes whatever a policy replies. Timeouts, 429, 5xx and what is
no completion are tried again with growing pauses for `patience_s`. All calls of a process share one limit; replies are
kept in the store, so the same call is paid for once. What no further call can mend (a refused key, a redirect, a spent
budget, nobody answered for `patience_s`, too many failures) sets `stop_reason`: from then on no call is made, and the
run saves and stops.
"""

import asyncio
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.llm.json_reply import ends_with_an_object, parse_reply
from arenarl.llm.prompts import quotable
from arenarl.llm.reply_store import ReplyStore, StoredReply, Usage, reply_key, run_of
from arenarl.llm.transport import OPENAI_URL, Completion, NoCompletion, Transport, asked_pause
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.event_loops import InFlight, LoopThread
from arenarl.system.progress import process_rank, share_of

Message = dict[str, Any]
Messages = Sequence[Message]
Parsed = TypeVar("Parsed", bound=BaseModel)
Read = TypeVar("Read")
Reader = Callable[[str], Read]  # raises ValueError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
WINDOW, FEWEST = 200, 50  # verdicts over which the share of failures is taken, and how many it takes to judge by
_RETRIED_STATUS = (408, 409, 429)  # and all from 500
_REFUSES_ALL = (401, 402, 403, 404, 405, 407, 410)  # a key, an account, a path, a proxy: no other call fares better
_FLAGS = 403  # of a model that answers others: OpenRouter and firewalls say so of a single prompt
# what Alibaba, Anthropic and others say with status 400 of an account that cannot pay
_NO_MONEY = re.compile(
    r"arrearage|good standing|credit balance|insufficient (?:account )?(?:balance|credit|fund)", re.IGNORECASE
)


class RunStopped(UserError):
    """The run cannot go on with its LLMs; what it has so far is sound."""


@dataclass(frozen=True)
class NoReply:
    """Why a call brought none. A refusal is the API's answer to this very request: too long, filtered, malformed."""

    reason: str
    is_refusal: bool = False


@dataclass(frozen=True)
class _Question(Generic[Read]):
    """What a call asks for. `read` turns the reply's text into a value; `form` holds further fields of the request.

    A reply that took all of `max_reply_tokens` may lack its end. It still counts if it ends with an object, unless
    `must_be_whole`.
    """

    llm: LLMConfig
    messages: Messages
    read: Reader[Read]
    again: str
    form: dict[str, Any] = field(default_factory=dict)
    must_be_whole: bool = False

    def request(self, conversation: Messages) -> dict[str, Any]:
        return chat_request(self.llm, conversation, self.llm.max_reply_tokens, self.llm.temperature, **self.form)

    def is_cut(self, reply: StoredReply) -> bool:
        return (reply.tokens_out or 0) >= self.llm.max_reply_tokens

    def parse(self, reply: StoredReply) -> Read:
        """Return the reply's value. Raises ValueError if it is cut off or does not fit."""
        is_cut = self.is_cut(reply)
        if is_cut and self.must_be_whole:
            raise ValueError("it is cut off")
        parsed = self.read(reply.text)
        if is_cut and not ends_with_an_object(reply.text):
            raise ValueError("it is cut off")
        return parsed

    def retry_messages(self, reply: StoredReply, problem: ValueError) -> list[Message]:
        """Return the conversation that shows the wrong reply, says what is wrong and asks once more."""
        text = reply.text[:4000] if reply.text.strip() else "(nothing)"  # Anthropic's API takes no empty message
        again = {"role": "user", "content": self.again.format(error=problem)}
        return [*self.messages, {"role": "assistant", "content": text}, again]


class LLMClient:
    """All LLM calls of a process, in an event loop of its own.

    Args:
        limits: `judge.concurrency`, which the processes share evenly, the store, the budget.
        stage: <run>/<stage>, under which the store counts what was paid; the limits are the run's.
        keys: by the name of its environment variable, from `read_keys`.
        log: a file that gets a line for every verdict that was had, or None.
    """

    def __init__(self, limits: JudgesConfig, stage: str, keys: dict[str, str], log: Path | None = None):
        self.limits, self.stage, self.log = limits, stage, log
        self.transport = Transport(keys)
        self.store = ReplyStore(Path(limits.store))
        self.usage = Usage()
        self.stop_reason: str | None = None
        self._slots = asyncio.Semaphore(share_of(limits.concurrency))
        self._stopped = asyncio.Event()
        self._answered: set[tuple[str, str]] = set()  # addresses and models that have
        self._refused: set[tuple[str, str]] = set()  # and those that refuse even a short question
        self._in_flight: InFlight[StoredReply | NoReply] = InFlight()
        self._questions: InFlight[None] = InFlight()
        self._has_failed: deque[bool] = deque(maxlen=WINDOW)
        self._last_reply_at = time.monotonic()
        self._last_error = self._last_failure = ""
        self._thread = LoopThread("llm-client")

    async def ask(
        self, llm: LLMConfig, messages: Messages, reply_type: type[Parsed], again: str, repeat: int = 0, about: str = ""
    ) -> Parsed | None:
        """One call's reply, or None if none could be had.

        `again` is what a reply that does not parse is answered with, `{error}` in it; `repeat` tells apart calls that
        differ in nothing else; `about` names the call in the log.
        """
        read, form = partial(parse_reply, reply_type=reply_type), _reply_form(llm, reply_type)
        return await self._run(self._ask(_Question(llm, messages, read, again, form), repeat, about))

    async def ask_text(
        self, llm: LLMConfig, messages: Messages, read: Reader[Read], again: str, repeat: int = 0, about: str = ""
    ) -> Read | None:
        """The same of a reply in whatever form the messages ask for: `read` makes something of its text, or raises
        ValueError. One that took all of `max_reply_tokens` may lack its end, and counts as unreadable."""
        question = _Question(llm, messages, read, again, must_be_whole=True)
        return await self._run(self._ask(question, repeat, about))

    async def complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int = 0) -> StoredReply | NoReply:
        """Return the reply to a `chat_request`; its text is the API's message as JSON, with `finish_reason`."""
        return await self._run(self._complete(llm, request, repeat))

    def take_usage(self) -> tuple[Usage, Usage]:
        """Return this process's usage since the last call, and what the run has paid over all stages and restarts."""

        async def take() -> tuple[Usage, Usage]:
            taken, self.usage = self.usage, Usage()
            return taken, self.store.spent(self.stage)

        return self._thread.submit(take()).result()

    def report(self) -> str:
        """What `take_usage` says, as a line for the terminal."""
        usage, spent = self.take_usage()
        tokens = f"{usage.tokens_in:,} tokens in, {usage.tokens_out:,} out, cost {usage.cost:.2f}"
        if usage.unknown_tokens:
            unknown = f"{usage.unknown_tokens:,} replies do not say their tokens"
            tokens += f"; {unknown} and are charged the most that they can have cost"
        counts = f"{usage.calls:,} paid for ({tokens}), {usage.from_store:,} replies from the store"
        last = f" (the last: {self._last_failure})" if usage.failed else ""
        so_far = f"{run_of(self.stage)} so far: {spent.calls:,} calls, cost {spent.cost:.2f}"
        return f"LLM calls: {counts}, {usage.failed:,} verdicts failed{last}; {so_far}"

    def check(self) -> None:
        """Raises RunStopped if the run is to stop: verdicts have been missing since."""
        if self.stop_reason:
            raise RunStopped(self.stop_reason)

    async def _run(self, call: Coroutine[Any, Any, Read]) -> Read:
        """Await a call in the client's own loop. What no call can mend stops the run too: tournaments take whatever is
        raised for a verdict that failed, and would go on without any."""

        async def run() -> Read:
            try:
                return await call
            except Exception as error:
                is_ours = isinstance(error, UserError)
                self._stop(str(error) if is_ours else f"no LLM can be called: {self.transport.in_words(error)}")
                raise

        return await self._thread.run(run())

    async def _ask(self, question: _Question[Read], repeat: int, about: str) -> Read | None:
        self.usage.verdicts += 1
        conversation, error = list(question.messages), ""
        for _ in range(2):
            reply = await self._reply(question.llm, question.request(conversation), repeat, Completion.text)
            if isinstance(reply, NoReply):
                error = reply.reason
                break
            try:
                parsed = question.parse(reply)
            except ValueError as problem:
                self.usage.unreadable += 1
                limit = f" (it took all of max_reply_tokens={question.llm.max_reply_tokens})"
                error = f"{problem}{limit if question.is_cut(reply) else ''}"
                conversation = question.retry_messages(reply, problem)
            else:
                self._note(has_failed=False)
                self._write_log(about, conversation, parsed)
                return parsed
        self._note_failure(error)
        return None

    async def _complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int) -> StoredReply | NoReply:
        self.usage.verdicts += 1
        reply = await self._reply(llm, request, repeat, Completion.whole_message)
        if isinstance(reply, NoReply):
            self._note_failure(reply.reason)
        else:
            self._note(has_failed=False)
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
            remedy = "run it once without store_only, with a key"
            self._stop(f"judge.store_only: {self.limits.store} lacks a reply of {llm.model}; {remedy}")
        if self.stop_reason:
            return NoReply(self.stop_reason)
        # who gives up waiting leaves the call, which is paid for, to the store
        return await self._in_flight.get(key, lambda: self._call(llm, request, key, read))

    async def _call(
        self, llm: LLMConfig, request: dict[str, Any], key: str, read: Callable[[Completion], str]
    ) -> StoredReply | NoReply:
        """Try until there is a reply. None comes if the API refuses this call, patience ends or the run is to stop."""
        started, pause_s, keeps_place = None, _FIRST_PAUSE_S, False
        async with AsyncExitStack() as place:
            while True:
                if not keeps_place:
                    await place.enter_async_context(self._slots)
                if self.stop_reason or not self._reserve():
                    return NoReply(self.stop_reason)
                started = started or time.monotonic()  # waiting for a place is not waiting for the API
                try:
                    completion = await self.transport.send(llm, request)
                    text = read(completion)
                except Exception as error:  # noqa: BLE001 - sorted below; what the run cannot go on with sets stop_reason
                    self._settle(llm, request, error)
                    status = getattr(error, "status_code", None)
                    if status == _FLAGS and _target(llm) not in self._answered:
                        await self._find_out_whether_it_answers(llm)
                    # so that not all come back at once
                    wait_s = self._pause_after(llm, error, pause_s * random.uniform(1.0, 1.5))
                    reason = self._last_error
                    # too many calls: another one in its place would be told the same
                    keeps_place = status == 429
                else:
                    self._last_reply_at = time.monotonic()
                    self._answered.add(_target(llm))
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
                with suppress(TimeoutError):  # the last attempt is made when patience ends
                    await asyncio.wait_for(self._stopped.wait(), min(wait_s, left_s))

    def _pause_after(self, llm: LLMConfig, error: Exception, pause_s: float) -> float | None:
        """Seconds until the next attempt: `pause_s`, or more if the server asks for it; None if none can help."""
        openai, self._last_error = self.transport.openai, self.transport.explain(llm, error)
        if isinstance(error, openai.APIStatusError):
            (where, model), status = _target(llm), error.status_code
            is_flagged = status == _FLAGS and _target(llm) not in self._refused
            has_no_money = status in (400, _FLAGS) and _NO_MONEY.search(f"{error.code} {error}")
            if has_no_money or (status in _REFUSES_ALL and not is_flagged):
                self._stop(f"the API at {where} refuses calls to {model}: {self._last_error}")
            elif status < 400:  # followed, it would tell the prompt to others, or end as another request
                elsewhere = self.transport.without_keys(error.response.headers.get("location", "nowhere"))
                remedy = "set base_url to the address that answers itself"
                self._stop(f"the API at {where} redirects calls ({status}) to {elsewhere}; {remedy}")
            elif status >= 500 or status in _RETRIED_STATUS:
                return max(pause_s, asked_pause(error.response.headers.get("retry-after")) * random.uniform(1.0, 1.25))
            return None  # otherwise for this call alone: too long, or filtered
        if isinstance(error, TimeoutError | openai.APIError | NoCompletion):
            return pause_s
        if isinstance(error, UnicodeEncodeError):  # half a surrogate in the request: it cannot be sent
            return None
        raise error

    async def _give_up(self, llm: LLMConfig, started: float) -> None:
        """Stop the run if no call had a reply in all that time, and a short question has none now."""
        if self._last_reply_at < started:
            await self._find_out_whether_it_answers(llm)
        if self._last_reply_at < started:
            where, _ = _target(llm)
            self._stop(f"no usable reply from {where} for {llm.patience_s:g} s; the last error: {self._last_error}")

    async def _find_out_whether_it_answers(self, llm: LLMConfig) -> None:
        await self._questions.get(_target(llm), partial(self._ask_whether_it_answers, llm))

    async def _ask_whether_it_answers(self, llm: LLMConfig) -> None:
        """A prompt that never gets a completion must not look like a dead server, nor one that is flagged like a
        refused key. The reply is paid for, not kept."""
        if self.stop_reason or not self._reserve():
            return
        question = [{"role": "user", "content": "Answer with one word: yes."}]
        request = chat_request(llm, question, llm.max_reply_tokens, llm.temperature)
        try:
            completion = await self.transport.send(llm, request)
        except Exception as error:  # noqa: BLE001 - the call that gave up has said why there is no reply
            self._settle(llm, request, error)
            if getattr(error, "status_code", None) in _REFUSES_ALL:
                self._refused.add(_target(llm))
            if not isinstance(error, self.transport.openai.BadRequestError):  # refused by a server that answers
                return
        else:
            self._charge(llm, request, completion.tokens)
            self._answered.add(_target(llm))
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
        self._charge(llm, request, completion.tokens)
        tokens_in, tokens_out = completion.tokens or (None, None)
        # where the server's own room was less, or it counts nothing, the number does not tell
        if completion.finish_reason == "length":
            tokens_out = max(tokens_out or 0, request[llm.token_limit_name])
        text, model = map(self.transport.without_keys, (text, completion.model or llm.model))
        return self.store.put(key, StoredReply(text, model, tokens_in, tokens_out))

    def _charge(self, llm: LLMConfig, request: dict[str, Any], known: tuple[int, int] | None) -> None:
        at_most = known or (len(json.dumps(request)), request[llm.token_limit_name])  # no token without a byte
        cost, (tokens_in, tokens_out) = llm.cost(*at_most), known or (0, 0)
        paid = Usage(calls=1, tokens_in=tokens_in, tokens_out=tokens_out, unknown_tokens=known is None, cost=cost)
        self.usage += paid
        self.store.charge(self.stage, paid)

    def _reserve(self) -> bool:
        if not self.store.reserve(self.stage, self.limits.max_calls, self.limits.max_cost):
            spent = self.store.spent(self.stage)
            limit = "max_calls" if spent.calls >= (self.limits.max_calls or float("inf")) else "max_cost"
            used = f"{run_of(self.stage)} has paid for {spent.calls} calls, cost {spent.cost:.2f}"
            self._stop(f"judge.{limit}={getattr(self.limits, limit)} is used up: {used}")
        return not self.stop_reason

    def _note(self, has_failed: bool) -> None:
        self._has_failed.append(has_failed)
        share, most = sum(self._has_failed) / len(self._has_failed), self.limits.max_failure_share
        if has_failed and len(self._has_failed) >= FEWEST and share > most:
            failed = f"{share:.0%} of the last {len(self._has_failed)} verdicts failed"
            self._stop(f"{failed}, above judge.max_failure_share={most}; the last: {self._last_failure}")

    def _note_failure(self, error: str) -> None:
        if not self.stop_reason:  # what comes after the stop tells nothing of the model
            self.usage.failed += 1
            self._last_failure = _one_line(self.transport.without_keys(error))
            self._note(has_failed=True)

    def _stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = _one_line(reason)
            self._stopped.set()

    def _write_log(self, about: str, messages: Messages, parsed: Any) -> None:
        if self.log is not None:
            line = {"about": about, "messages": json_hash(messages), "reply": to_jsonable_python(parsed)}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(self.transport.without_keys(json.dumps(line)) + "\n")


def usage_metrics(usage: Usage, spent: Usage) -> dict[str, float]:
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
    """Open one client for every LLM in `llms`, or return None without any. With a `folder` it logs every verdict there.
    Raises UserError if a key's environment variable is not set."""
    llms = [llm for llm in llms if llm.name == "llm"]
    if not llms:
        return None
    log = folder / f"verdicts-{process_rank()}.jsonl" if folder else None
    return LLMClient(limits, stage, {} if limits.store_only else read_keys(llms), log)


def read_keys(llms: Sequence[LLMConfig]) -> dict[str, str]:
    """Return the keys that these LLMs need, by the name of their environment variable.
    Raises UserError if a variable is not set, or holds what cannot stand in a header."""
    keys = {}
    for llm in llms:
        if name := llm.api_key_variable:
            key = keys[name] = os.environ.get(name, "").strip()
            if not key:
                where, model = _target(llm)
                raise UserError(f"set the environment variable {name} to the key for {where}, for {model}")
            if not (key.isascii() and key.isprintable()):
                problem = "holds characters that no key has"
                raise UserError(f"the environment variable {name} {problem}; set it to the key alone")
    return keys


def chat_request(
    llm: LLMConfig, messages: Messages, max_tokens: int, temperature: float | None, **fields: Any
) -> dict[str, Any]:
    """Return a chat completion's body, which a reply depends on. A model whose temperature is null is sent none."""
    request = {"model": llm.model, "messages": list(messages), llm.token_limit_name: max_tokens, **fields}
    if llm.temperature is not None:
        request["temperature"] = temperature
    if llm.extra_body:
        request["extra_body"] = llm.extra_body
    return request


def _target(llm: LLMConfig) -> tuple[str, str]:
    """The address and the model that calls go to."""
    return llm.base_url or OPENAI_URL, llm.model


def _reply_form(llm: LLMConfig, reply_type: type[BaseModel]) -> dict[str, Any]:
    """The fields of a request that hold the model to the reply's form."""
    if llm.reply_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    if llm.reply_format == "json_schema":
        schema = {"name": reply_type.__name__, "strict": True, "schema": _schema(reply_type)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


@lru_cache
def _schema(reply_type: type[BaseModel]) -> dict[str, Any]:
    return reply_type.model_json_schema()


def _one_line(text: str) -> str:
    """An error as a line for the terminal."""
    return " ".join(quotable(text).split())[:1000]
