"""Call LLMs behind OpenAI-compatible APIs, for judges, query rubrics, simulated tools and closed policies.

`ask` returns a JSON reply as a pydantic model, or None, never a guess. A reply that does not parse is requested once
more, with the error. `complete` returns any reply, for closed policies. Timeouts, 429, 5xx and invalid completions are
retried with growing pauses for `patience_s`. All calls of a process share one limit. The store keeps replies, so that
the same call is paid for once. An error that further calls cannot fix sets `stop_reason`: a refused key, a redirect, a
spent budget, no reply for `patience_s`, too many failures. Then no further call is made, and the run saves and stops.
"""

import asyncio
import atexit
import json
import os
import random
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.llm.json_reply import parse_reply
from arenarl.llm.reply_store import ReplyStore, StoredReply, Usage, cost_text, reply_key, run_of
from arenarl.llm.requests import Call, Messages, Read, Reader, probe_request, reply_format, target
from arenarl.llm.transport import (
    OPENAI_URL,
    APIConnectionError,
    APIStatusError,
    Completion,
    NoCompletion,
    Transport,
    retry_after_s,
)
from arenarl.system.atomic_files import json_hash
from arenarl.system.database import is_url
from arenarl.system.errors import MOST_SHOWN, UserError, one_line
from arenarl.system.event_loops import InFlight, LoopThread
from arenarl.system.progress import is_main_process, machine_count, process_rank, say, say_once, share_of

Parsed = TypeVar("Parsed", bound=BaseModel)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_SILENCE_S = 30.0  # seconds without a usable reply after which a line is printed
_QUIET_S = 2.0  # seconds that `close` waits before it prints a line
WINDOW, FEWEST = 200, 50  # the failure share covers the last WINDOW verdicts, and needs FEWEST of them
_RETRIED_STATUS = (408, 409, 429)  # besides all statuses from 500
_REFUSES_ALL = (401, 402, 403, 404, 405, 407, 410)  # a wrong key, account, path or proxy: all other calls fail too
_FLAGGED = 403  # OpenRouter and firewalls also send this status for a single prompt, while other prompts get replies
# phrases of Alibaba, Anthropic and others, with status 400, for an account that cannot pay
_NO_MONEY = re.compile(
    r"arrearage|good standing|credit balance|insufficient (?:account )?(?:balance|credit|fund)", re.IGNORECASE
)


_metered: ContextVar[list[Usage] | None] = ContextVar("metered", default=None)
_clients: WeakSet["LLMClient"] = WeakSet()


if sys.platform != "win32":  # a forked child lacks the clients' threads, so `close` would hang
    os.register_at_fork(after_in_child=_clients.clear)


@atexit.register
def _close_all() -> None:
    if _clients:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `run_cli` ignores Ctrl-C, which must end the wait
    for client in list(_clients):
        client.close()


@contextmanager
def metered() -> Iterator[list[Usage]]:
    """Yield a list that receives the usage of each call that is paid for inside the `with` block.

    Calls of tasks that are created inside the block count too.
    """
    paid: list[Usage] = []
    token = _metered.set(paid)
    try:
        yield paid
    finally:
        _metered.reset(token)


class RunStopped(UserError):
    """The run must stop, because its LLMs cannot be used any longer. Its results so far are valid."""


@dataclass(frozen=True)
class NoReply:
    """The reason why a call has no reply. A refusal concerns this request only: too long, filtered, malformed."""

    reason: str
    is_refusal: bool = False


class LLMClient:
    """All LLM calls of a process, in a separate event loop.

    Args:
        limits: the store, the budget, and `judge.concurrency`, which the processes share evenly.
        stage: <run>/<stage>, the store's name for this spending. The limits apply to the whole run.
        keys: API keys by environment variable, from `read_keys`.
        log: a file that gets a line for every parsed reply, or None.
    """

    def __init__(self, limits: JudgesConfig, stage: str, keys: dict[str, str], log: Path | None = None):
        self.limits, self.stage, self.log = limits, stage, log
        self.transport = Transport(keys)
        self.store = ReplyStore(limits.store)
        self.usage = Usage()
        self.stop_reason: str | None = None
        self._slots = asyncio.Semaphore(share_of(limits.concurrency))
        self._stopped = asyncio.Event()
        self._working: set[tuple[str, str]] = set()  # (address, model) with a reply so far
        self._refusing: set[tuple[str, str]] = set()  # (address, model) that refuses even the probe
        self._in_flight: InFlight[StoredReply | NoReply] = InFlight()
        self._probes: InFlight[None] = InFlight()
        self._failures: deque[bool] = deque(maxlen=WINDOW)
        self._last_reply_at = time.monotonic()
        self._last_error = self.last_failure = ""
        self._is_silence_reported = self._is_last_unreadable = False
        self._thread = LoopThread("llm-client", on_end=self.transport.close)
        _clients.add(self)

    async def ask(
        self, llm: LLMConfig, messages: Messages, reply_type: type[Parsed], retry: str, repeat: int = 0, about: str = ""
    ) -> Parsed | None:
        """Return the JSON reply of one call, or None if no reply is valid.

        `retry` is the prompt after a reply that does not parse; it contains `{error}`. `repeat` distinguishes calls
        with equal messages. `about` names the call in the log.
        """
        read, fields = partial(parse_reply, reply_type=reply_type), reply_format(llm.reply_format, reply_type)
        return await self._run(partial(self._ask, Call(llm, messages, read, retry, fields), repeat, about))

    async def ask_text(
        self, llm: LLMConfig, messages: Messages, read: Reader[Read], retry: str, repeat: int = 0, about: str = ""
    ) -> Read | None:
        """Return `read(text)` of a reply in any format, or None if no reply is valid; see `ask`.

        `read` raises ValueError for a wrong text. A reply that used all of `max_reply_tokens` may lack its end and
        counts as unreadable.
        """
        return await self._run(partial(self._ask, Call(llm, messages, read, retry, must_be_whole=True), repeat, about))

    async def complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int = 0) -> StoredReply | NoReply:
        """Return the reply to a `chat_request`; its text is the API's message as JSON, with `finish_reason`."""
        return await self._run(partial(self._complete, llm, request, repeat)) or NoReply(self.stop_reason)

    def take_usage(self) -> tuple[Usage, Usage]:
        """Return this process's usage since the last call, and what the run has paid over all stages and restarts."""

        async def take() -> tuple[Usage, Usage]:
            taken, self.usage = self.usage, Usage()
            return taken, self.store.spent(self.stage)

        return self._thread.submit(take()).result()

    def report(self) -> str:
        """Return the result of `take_usage` as a line for the terminal."""
        usage, spent = self.take_usage()
        cached = f" ({usage.tokens_cached:,} from the API's cache)" if usage.tokens_cached else ""
        tokens = f"{usage.tokens_in:,} tokens in{cached}, {usage.tokens_out:,} out, cost {cost_text(usage.cost)}"
        if usage.unknown_tokens:
            tokens += f"; {usage.unknown_tokens:,} replies without a token count, charged the maximum possible cost"
        counts = f"{usage.calls:,} paid for ({tokens}), {usage.from_store:,} replies from the store"
        last = f" (the last: {self.last_failure})" if usage.failed else ""
        so_far = f"{run_of(self.stage)} so far: {spent.calls:,} calls, cost {cost_text(spent.cost)}"
        return f"LLM calls: {counts}, {usage.failed:,} verdicts failed{last}; {so_far}"

    def bill(self) -> str:
        """Return what the run has paid over all stages and restarts as a line for the terminal."""
        spent = self.take_usage()[1]
        tokens = f"{spent.tokens_in:,} tokens in, {spent.tokens_out:,} out"
        paid = f"{spent.calls:,} calls, {tokens}, cost {cost_text(spent.cost)}"
        return f"bill of {run_of(self.stage)}, all stages and restarts: {paid}"

    def close(self) -> None:
        """Start no further call, and wait for the calls under way, so that their replies are stored and counted.
        Ctrl-C ends the wait. Python's exit calls it too."""

        async def finish(timeout_s: float | None) -> int:
            """Wait for the calls under way; return how many still are."""
            self._stop("the run has ended")
            calls = self._in_flight.tasks
            return len((await asyncio.wait(calls, timeout=timeout_s))[1]) if calls else 0

        _clients.discard(self)  # Python's exit must not wait again after Ctrl-C
        with suppress(KeyboardInterrupt):
            if pending := self._thread.submit(finish(_QUIET_S)).result():
                sent = min(pending, share_of(self.limits.concurrency))  # the others wait for a slot and then end
                # printed here: Python aborts if it ends while another thread is inside `print`
                say(f"LLM calls: waiting for {sent} calls that the API may charge; Ctrl-C to leave")
                self._thread.submit(finish(None)).result()

    def check(self) -> None:
        """Raise RunStopped if `stop_reason` is set. All verdicts after it are missing."""
        if self.stop_reason:
            raise RunStopped(self.stop_reason)

    async def _run(self, call: Callable[[], Coroutine[Any, Any, Read]]) -> Read | None:
        """Make a call in the client's event loop. Any error sets `stop_reason`, so that all processes save and stop.
        The call has no reply after a UserError; any other error is raised too."""

        async def run() -> Read | None:
            try:
                return await call()
            except UserError as error:
                self._stop(str(error))
                return None
            except Exception as error:
                self._stop(f"cannot call any LLM: {self.transport.describe(error)}")
                raise

        return await self._thread.run(run())

    async def _ask(self, call: Call[Read], repeat: int, about: str) -> Read | None:
        self.usage.verdicts += 1
        conversation, error = list(call.messages), ""
        for _ in range(2):
            reply = await self._reply(call.llm, call.request(conversation), repeat, Completion.text)
            if isinstance(reply, NoReply):
                error = reply.reason
                break
            try:
                parsed = call.parse(reply)
            except ValueError as problem:
                self.usage.unreadable += 1
                limit = f" (it used all of max_reply_tokens={call.llm.max_reply_tokens})"
                error = f"{problem}{limit if call.is_cut(reply) else ''}"
                conversation = call.retry_messages(reply, problem)
            else:
                self._count(is_failure=False)
                self._write_log(about, conversation, parsed)
                return parsed
        self._count_failure(error, is_unreadable=not isinstance(reply, NoReply))
        return None

    async def _complete(self, llm: LLMConfig, request: dict[str, Any], repeat: int) -> StoredReply | NoReply:
        self.usage.verdicts += 1
        reply = await self._reply(llm, request, repeat, Completion.whole_message)
        if isinstance(reply, NoReply):
            self._count_failure(reply.reason)
        else:
            self._count(is_failure=False)
        return reply

    async def _reply(
        self, llm: LLMConfig, request: dict[str, Any], repeat: int, read: Callable[[Completion], str]
    ) -> StoredReply | NoReply:
        """Return the reply from the store, from an equal call under way, or from a new call.
        `read` turns a completion into the stored text."""
        key = reply_key(llm.base_url or OPENAI_URL, request, repeat)
        if stored := self.store.get(key):
            self.usage.from_store += 1
            return stored
        if self.limits.store_only:
            remedy = "run once without store_only, with a key"
            self._stop(f"judge.store_only: {self.limits.store} lacks a reply of {llm.model}; {remedy}")
        if self.stop_reason:
            return NoReply(self.stop_reason)
        # if the caller stops waiting, the paid call continues, and its reply is stored
        return await self._in_flight.get(key, lambda: self._call(llm, request, key, read))

    async def _call(
        self, llm: LLMConfig, request: dict[str, Any], key: str, read: Callable[[Completion], str]
    ) -> StoredReply | NoReply:
        """Retry until a reply comes, the API refuses this call, patience ends, or the run stops."""
        started, pause_s, has_slot = None, _FIRST_PAUSE_S, False
        try:
            while True:
                if not has_slot:
                    has_slot = await self._slots.acquire()
                if self.stop_reason or not self._reserve():
                    return NoReply(self.stop_reason)
                started = started or time.monotonic()  # patience does not count the wait for a slot
                try:
                    completion = await self.transport.send(llm, request)
                    text = read(completion)
                except Exception as error:  # noqa: BLE001 - `_pause_after` decides: retry, fail alone, or stop the run
                    self._settle(llm, request, error)
                    status = getattr(error, "status", None)
                    if status == _FLAGGED and target(llm) not in self._working:
                        await self._probe_once(llm)
                    # random, so that not all calls return at once
                    wait_s = self._pause_after(llm, error, pause_s * random.uniform(1.0, 1.5))
                    reason = self._last_error
                    keeps_slot = status == 429  # any other call in this slot would get the same status
                else:
                    self._last_reply_at, self._is_silence_reported = time.monotonic(), False
                    self._working.add(target(llm))
                    return self._store_reply(llm, request, key, completion, text)
                if not keeps_slot:
                    self._slots.release()
                    has_slot = False
                if wait_s is None:
                    return NoReply(reason, is_refusal=not self.stop_reason)
                left_s = started + llm.patience_s - time.monotonic()
                if left_s <= 0:
                    await self._give_up(llm, started)
                    return NoReply(reason)
                self._report_silence(llm, started)
                self.usage.retries += 1
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                with suppress(TimeoutError):  # the last attempt is made when patience ends
                    await asyncio.wait_for(self._stopped.wait(), min(wait_s, left_s))
        finally:
            if has_slot:
                self._slots.release()

    def _pause_after(self, llm: LLMConfig, error: Exception, pause_s: float) -> float | None:
        """Return the seconds until the next attempt; None if retrying is useless. Stops the run if all calls must fail.
        The pause is `pause_s`, or the server's Retry-After if that is longer."""
        self._last_error = self.transport.explain(llm, error)
        if isinstance(error, APIStatusError):
            (where, model), status = target(llm), error.status
            is_flagged = status == _FLAGGED and target(llm) not in self._refusing
            has_no_money = status in (400, _FLAGGED) and _NO_MONEY.search(f"{error.code} {error}")
            if has_no_money or (status in _REFUSES_ALL and not is_flagged):
                self._stop(f"the API at {where} refuses calls to {model}: {self._last_error}")
            elif 300 <= status < 400:  # following it could send the prompt to another host, or change the request
                location = self.transport.without_keys(error.headers.get("location", "nowhere"))
                remedy = "set base_url to the final address"
                self._stop(f"the API at {where} redirects calls ({status}) to {location}; {remedy}")
            elif not 400 <= status < 500 or status in _RETRIED_STATUS:
                wanted_s = retry_after_s(error.headers.get("retry-after"))
                return max(pause_s, wanted_s * random.uniform(1.0, 1.25))
            return None  # only this call fails: too long, or filtered
        if isinstance(error, TimeoutError | APIConnectionError | NoCompletion):
            return pause_s
        if isinstance(error, PydanticSerializationError):  # half a surrogate in the request, which cannot be sent
            return None
        raise error

    def _report_silence(self, llm: LLMConfig, started: float) -> None:
        """Print once per silence that calls are retried, if no call had a reply since `started`, `_SILENCE_S` ago."""
        is_silent = self._last_reply_at < started <= time.monotonic() - _SILENCE_S
        if is_silent and not self._is_silence_reported:
            self._is_silence_reported = True
            retried = f"each call is retried for patience_s={llm.patience_s:g} s"
            where, _ = target(llm)
            say(f"LLM calls: no usable reply from {where} for {_SILENCE_S:g} s; {retried}; error: {self._last_error}")

    async def _give_up(self, llm: LLMConfig, started: float) -> None:
        """Stop the run if no call had a reply since `started`, and the probe has none now."""
        if self._last_reply_at < started:
            await self._probe_once(llm)
        if self._last_reply_at < started:
            where, _ = target(llm)
            self._stop(f"no usable reply from {where} for {llm.patience_s:g} s; the last error: {self._last_error}")

    async def _probe_once(self, llm: LLMConfig) -> None:
        await self._probes.get(target(llm), partial(self._probe, llm))

    async def _probe(self, llm: LLMConfig) -> None:
        """Send a short prompt, to separate one bad prompt from a dead server or a refused key.
        The reply is paid for but not stored."""
        if self.stop_reason or not self._reserve():
            return
        request = probe_request(llm)
        try:
            completion = await self.transport.send(llm, request)
        except Exception as error:  # noqa: BLE001 - the failed call reports its own error
            self._settle(llm, request, error)
            status = getattr(error, "status", None)
            if status in _REFUSES_ALL:
                self._refusing.add(target(llm))
            if status != 400:  # a 400 proves that the server runs
                return
        else:
            paid = self._count_paid(llm, request, completion.tokens, completion.tokens_cached)
            self.store.charge(self.stage, paid)
            self._working.add(target(llm))
        self._last_reply_at = time.monotonic()

    def _settle(self, llm: LLMConfig, request: dict[str, Any], error: Exception) -> None:
        """Cancel the reservation of a failed call, or charge it if it was billed."""
        if isinstance(error, NoCompletion) and error.tokens:
            self.store.charge(self.stage, self._count_paid(llm, request, error.tokens))
        else:
            self.store.release(self.stage)

    def _store_reply(
        self, llm: LLMConfig, request: dict[str, Any], key: str, completion: Completion, text: str
    ) -> StoredReply:
        tokens_in, tokens_out = completion.tokens or (None, None)
        # the count does not show a cut if the server's own limit is lower, or if the server does not count
        if completion.finish_reason == "length":
            tokens_out = max(tokens_out or 0, request[llm.token_limit_name])
        text, model = map(self.transport.without_keys, (text, completion.model or llm.model))
        paid = self._count_paid(llm, request, completion.tokens, completion.tokens_cached)

        def charge_and_put() -> StoredReply:
            self.store.charge(self.stage, paid)
            return self.store.put(key, StoredReply(text, model, tokens_in, tokens_out))

        return self.store.transaction(charge_and_put)

    def _count_paid(
        self, llm: LLMConfig, request: dict[str, Any], tokens: tuple[int, int] | None, cached: int = 0
    ) -> Usage:
        """Count a paid call in this process's usage, and return its usage, which the store is charged with."""
        most = tokens or (len(json.dumps(request)), request[llm.token_limit_name])  # a token has at least one byte
        cost, (tokens_in, tokens_out) = llm.cost(*most, cached), tokens or (0, 0)
        counts = {"tokens_in": tokens_in, "tokens_out": tokens_out, "tokens_cached": cached}
        paid = Usage(calls=1, **counts, unknown_tokens=tokens is None, cost=cost)
        self.usage += paid
        if (metered_calls := _metered.get()) is not None:
            metered_calls.append(paid)
        return paid

    def _reserve(self) -> bool:
        if not self.store.reserve(self.stage, self.limits.max_calls, self.limits.max_cost):
            spent = self.store.spent(self.stage)
            limit = "max_calls" if spent.calls >= (self.limits.max_calls or float("inf")) else "max_cost"
            paid = f"{spent.calls} calls, with those under way, cost so far {cost_text(spent.cost)}"
            used = f"judge.{limit}={getattr(self.limits, limit)} is used up: {run_of(self.stage)} has made {paid}"
            self._stop(f"{used}, over all its stages and starts; raise judge.{limit}, or name another run")
        return not self.stop_reason

    def _count(self, is_failure: bool) -> None:
        """Add a verdict to the window of recent verdicts, and stop the run if too many of these failed."""
        self._failures.append(is_failure)
        if not is_failure or len(self._failures) < FEWEST:
            return
        share, most = sum(self._failures) / len(self._failures), self.limits.max_failure_share
        if share > most:
            failed = f"{share:.0%} of the last {len(self._failures)} verdicts failed"
            how = "; unreadable replies stay in judge.store, so name another file once the judge is mended"
            limit = f"judge.max_failure_share={most}{how if self._is_last_unreadable else ''}"
            self._stop(f"{failed}, above {limit}; the last: {self.last_failure}")

    def _count_failure(self, error: str, is_unreadable: bool = False) -> None:
        if not self.stop_reason:  # failures after the stop are not the model's
            self.usage.failed += 1
            self._is_last_unreadable = is_unreadable
            self.last_failure = one_line(self.transport.without_keys(error), MOST_SHOWN)
            self._count(is_failure=True)

    def _stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = one_line(reason, MOST_SHOWN)
            self._stopped.set()

    def _write_log(self, about: str, messages: Messages, parsed: Any) -> None:
        if self.log is not None:
            line = {"about": about, "messages": json_hash(messages), "reply": to_jsonable_python(parsed)}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(self.transport.without_keys(json.dumps(line)) + "\n")


def usage_metrics(usage: Usage, spent: Usage) -> dict[str, float]:
    """Return the metrics of a step's LLM calls, and of the run's spending so far."""
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
    """Open one client for all LLMs in `llms`; return None if there are none.

    A file in `folder` receives a log of all replies. Raises UserError if the environment variable of an API key is not
    set, or if several machines cannot share the budget.
    """
    llms = [llm for llm in llms if llm.name == "llm"]
    if not llms:
        return None
    if not limits.store_only:
        _check_machines(limits)
    log = folder / f"verdicts-{process_rank()}.jsonl" if folder else None
    return LLMClient(limits, stage, {} if limits.store_only else read_keys(llms), log)


def _check_machines(limits: JudgesConfig) -> None:
    """Refuse a limit that each of several machines would apply alone. Without a limit, print that they share no
    replies."""
    if (machines := machine_count()) == 1 or is_url(limits.store):
        return
    place = f"judge.store={limits.store} is a file, which {machines} machines cannot share"
    remedy = "set judge.store=postgresql://user@host/database (docs/paper_scale.md)"
    for key in ("max_calls", "max_cost"):
        if (limit := getattr(limits, key)) is not None:
            raise UserError(
                f"judge.{key}={limit}: {place}, so each could spend the whole limit; {remedy}, or leave the limit out"
            )
    say_once(f"{place}: limits hold per machine, and each pays for its own replies; to share them, {remedy}")


@contextmanager
def billed(client: LLMClient | None) -> Iterator[None]:
    """Close the client when the `with` block ends, also after an error, and print the run's bill on the main
    process."""
    try:
        yield
    finally:
        if client:
            client.close()
            if is_main_process():
                print(client.bill(), flush=True)


def read_keys(llms: Sequence[LLMConfig]) -> dict[str, str]:
    """Return the API keys of these LLMs by environment variable.
    Raises UserError if a variable is not set, or holds characters that a header cannot hold."""
    keys = {}
    for llm in llms:
        if name := llm.api_key_variable:
            key = keys[name] = os.environ.get(name, "").strip()
            if not key:
                where, model = target(llm)
                or_none = f"; if {where} needs no key, set api_key_variable to null" if llm.base_url else ""
                raise UserError(f"set the environment variable {name} to the key for {where}, for {model}{or_none}")
            if not (key.isascii() and key.isprintable()):
                problem = "holds characters that no key has"
                raise UserError(f"the environment variable {name} {problem}; set it to the key only")
    return keys
