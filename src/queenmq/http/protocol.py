"""One client's connection. Push, pop and ack are answered straight from the parser's callbacks; all else by Starlette.

Requests are answered one at a time, in the order they came. While one is under way, what the client sends is kept
unparsed, and beyond a limit unread. A request is given to its handler when its body is complete, so limits of size and
time hold for all routes alike, and nothing a client sends slowly keeps a handler waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from ..engine.errors import Stopping
from .answer import Answer, Work
from .caller import ANYONE, Caller, NeedsSlowPath
from .cycle import AppCycle
from .errors import answer_for
from .guard import MOST_OF_A_STRANGER, Guard
from .heads import CONTINUE, PREFLIGHT, head
from .reading import BODY, HEAD, NOTHING, Reading
from .refusals import Refused, timed_out, too_many_connections
from .request import Request
from .service import Service
from .sockets import has_closed, tune, unacknowledged

_MOST_HELD = MOST_OF_A_STRANGER
_ONE_WRITE = 64 * 1024
_LINGER = 2.0
_LINGER_AT_THE_END = 0.5
_MOST_REFUSED = 128
_FIRST_PROBE = 0.002
_LONGEST_PROBE = 5.0
_DOUBTFUL = 0.005  # seconds after which it is asked again whether a client has left
_LONGEST_DOUBT = 5.0  # seconds after which it counts as gone

_POP = b"/api/v1/pop"
_POP_QUEUE = b"/api/v1/pop/queue/"


class HotProtocol(Reading):
    """`_current` is the request being answered, by `_work` or by `_cycle`; those in `_ahead` wait for their turn.
    Nothing goes on while `_pausing`: until it is known who sends the next one, or others have had their turn."""

    __slots__ = (
        "_ahead",
        "_current",
        "_cycle",
        "_ending",
        "_eof",
        "_handing",
        "_lingering",
        "_pausing",
        "_prober",
        "_questioned",
        "_read_paused",
        "_unsent",
        "_work",
        "_write_paused",
    )

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._current: Request | None = None
        self._work: Work | None = None
        self._cycle: AppCycle | None = None
        self._ahead: list[Request | Answer] = []
        self._pausing: asyncio.Task[None] | asyncio.Handle | None = None
        self._lingering = False
        self._ending = False  # we close when the answer is sent
        self._eof = False
        self._questioned: tuple[Work, float] | None = None  # it is done; when the client was asked whether it is there
        self._handing: Work | None = None  # its answer is on its way out, and too large to be sent at once
        self._prober: asyncio.TimerHandle | None = None
        self._read_paused = False
        self._write_paused = False
        self._unsent = 0

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        service = self._service
        service.add(self)
        self._since = service.now
        sock = transport.get_extra_info("socket")
        if sock is not None:
            tune(sock, service.limits)
        excess = len(service.connections) - service.limits.max_connections
        if service.draining or excess > _MOST_REFUSED:
            self._transport.abort()
        elif excess > 0:
            service.refused += 1
            self._refuse(too_many_connections().answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.remove(self)
        self._deaf = True
        work, self._work = self._work, None
        if work is not None:
            self._service.parked -= 1
            work.give_up()
        self._handed(sent=exc is None and self._ending)
        if self._cycle is not None:
            self._cycle.client_gone()
        asking, self._pausing = self._pausing, None
        for running in (asking, self._prober):
            if running is not None:
                running.cancel()
        # Break the reference cycles, so that nothing waits for the garbage collector.
        self._parser = self._cycle = self._prober = self._current = self._request = None  # type: ignore[assignment]
        self._questioned = None
        self._ahead.clear()
        self._held = b""

    def eof_received(self) -> bool:
        """The client will send nothing more, but may still read: stay open as long as it is owed an answer."""
        self._eof = True
        if self._lingering or not (self._current or self._ahead or self._held):
            return False
        if self._current is not None:
            self._doubt(self._current)
        return True

    def _doubt(self, request: Request) -> None:
        """Nothing more will come from this client. If the request can take long, find out whether it still reads."""
        if request.method != b"GET":
            return
        if request.version == "1.0":
            # It cannot be asked. A poll is given up, anything else will not take long.
            if self._work is not None:
                self._transport.close()
        elif self._work is not None:
            self._probe(request, _FIRST_PROBE)
        else:
            self._prober = self._service.loop.call_later(_FIRST_PROBE, self._probe, request, _FIRST_PROBE)

    def _probe(self, request: Request, delay: float) -> None:
        """Closing a connection looks like closing its sending half. The difference shows in writing to it, and what may
        be written before an answer is that it is being worked on. The second write to a closed one fails."""
        self._prober = None
        if self._current is not request or (self._cycle is not None and self._cycle.response_started):
            return
        self._transport.write(CONTINUE)
        longer = min(delay * 5, _LONGEST_PROBE)
        self._prober = self._service.loop.call_later(delay, self._probe, request, longer)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._since = self._service.now
        self._unsent = self._transport.get_write_buffer_size()
        if self._cycle is not None:
            self._cycle.flow.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._handed(sent=True)
        if self._cycle is not None:
            self._cycle.flow.resume_writing()
        self._proceed()

    def _handed(self, *, sent: bool) -> None:
        """What became of a large answer."""
        work, self._handing = self._handing, None
        if work is not None and sent:
            work.delivered()
        elif work is not None:
            work.undelivered()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._eof:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused and not self._eof and not self._transport.is_closing():
            self._read_paused = False
            self._transport.resume_reading()

    def _read_on_later(self) -> None:
        self._pause_reading()
        self._service.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if len(self._held) <= _MOST_HELD:
            self._resume_reading()

    # What the service asks of every connection

    def sweep(self, now: float) -> None:
        limits, waited = self._service.limits, now - self._since
        if self._lingering:
            if waited > _LINGER:
                self._transport.abort()
        elif self._write_paused:
            self._give_up_when_stuck(waited)
        elif self._transport.is_closing():
            if waited > limits.idle_timeout:  # the rest of the last answer is not read
                self._transport.abort()
        elif self._current is not None or self._pausing is not None:
            self._look_for_the_end()
        elif self._reading == HEAD:
            if waited > limits.header_timeout:
                self._time_out("headers", limits.header_timeout)
        elif self._reading == BODY:
            if waited > limits.body_timeout:
                self._time_out("body", limits.body_timeout)
        elif waited > limits.idle_timeout:
            self._transport.close()

    def _look_for_the_end(self) -> None:
        """Nothing is read while much is held, so the loop does not say that the client has left."""
        if self._read_paused and self._current is not None and self._prober is None and has_closed(self._transport):
            self._doubt(self._current)

    def _give_up_when_stuck(self, waited: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent, self._since = unsent, self._service.now
        elif waited > self._service.limits.body_timeout:
            self._service.timeouts += 1
            self._transport.abort()

    def _time_out(self, what: str, seconds: float) -> None:
        self._service.timeouts += 1
        self._refuse(timed_out(what, seconds).answer)

    def shutdown(self) -> None:
        """What is complete is answered, and the answer closes. A client that has sent a part of a request may take as
        long as it likes for the rest, so that is not waited for."""
        if self._current or self._ahead:
            if self._cycle is not None:
                self._cycle.keep_alive = False
        elif self._reading == BODY:
            pausing, self._pausing = self._pausing, None
            if pausing is not None:
                pausing.cancel()
            self._refuse(answer_for(Stopping("the request is not complete")))
        elif not self._held:
            self._transport.close()

    # Answering

    def _must_wait(self) -> bool:
        return self._current is not None or self._write_paused or self._pausing is not None or bool(self._ahead)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _MOST_HELD:
            self._pause_reading()

    def _accept(self, request: Request) -> None:
        if self._must_wait():
            self._ahead.append(request)
        else:
            self._begin(request)

    def _admit(self, request: Request, guard: Guard) -> None:
        try:
            guard.admit(request)
        except NeedsSlowPath:
            request.undecided = True
            if not self._must_wait():
                self._ask_for(request)

    def _ask_for(self, request: Request) -> None:
        """Find out who sends the request whose turn it is."""
        guard = self._service.guard
        assert guard is not None
        asking = self._service.loop.create_task(guard.admit_slowly(request))
        asking.add_done_callback(self._asked)
        self._pausing = asking

    def _asked(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._pausing is not task:
            return  # the client has left
        self._pausing = None
        self._since = self._service.now
        if error is None:
            self._proceed()
        else:
            self._ahead.clear()
            self._refuse_because(error)

    def _let_others(self) -> None:
        self._pausing = self._service.loop.call_soon(self._had_turn)

    def _had_turn(self) -> None:
        self._pausing = None
        self._proceed()

    def _unpack(self, request: Request) -> Iterator[None]:
        refusal = None
        try:
            for _ in request.unpack():
                yield
                if self._current is not request:
                    return  # the client has left
        except Refused as refused:
            refusal = refused.answer
        if self._current is not request:
            return
        self._current = None
        if refusal is None:
            self._begin(request)
            self._proceed()
        else:
            self._ahead.clear()
            self._refuse(refusal)

    def _begin(self, request: Request) -> None:
        if request.undecided:
            self._ahead.insert(0, request)
            self._ask_for(request)
            return
        if request.packed:
            self._current = request
            self._service.take_turns(self._unpack(request))
            return
        service = self._service
        service.requests += 1
        try:
            outcome = self._handle(request)
        except NeedsSlowPath:
            outcome = None
        except Exception as error:
            outcome = answer_for(error)
        if outcome is None:
            self._ask_app(request)
        elif isinstance(outcome, Answer):
            self._reply(request, outcome)
        else:
            self._current = request
            self._work = outcome
            service.parked += 1
            outcome.future.add_done_callback(self._done)
        if self._eof and self._current is request:
            self._doubt(request)

    def _handle(self, request: Request) -> Answer | Work | None:
        """None when this is for Starlette."""
        path, _, query = request.url.partition(b"?")
        if request.method == b"POST":
            handler = self._service.posts.get(path)
            if handler is not None:
                caller = self._caller(request)
                return handler(request.take_body(), caller)
        elif request.method == b"GET":
            if path == _POP or path.startswith(_POP_QUEUE):
                return self._service.pop(path[len(_POP) :].decode("ascii"), query, self._caller(request))
        elif request.method == b"OPTIONS":
            return PREFLIGHT
        return None

    def _caller(self, request: Request) -> Caller:
        guard = self._service.guard
        return ANYONE if guard is None else request.caller or guard.caller(request)

    def _done(self, future: asyncio.Future[object]) -> None:
        work, request = self._work, self._current
        if work is None or request is None or work.future is not future:
            return  # the client has left
        if (work.takes() or (self._read_paused and request.method == b"GET")) and self._may_have_left(request, work):
            self._service.loop.call_later(_DOUBTFUL, self._done, future)
            return
        self._work = self._current = None
        self._service.parked -= 1
        shown = False
        try:
            answer = work.answer(future.result())
            shown = not self._transport.is_closing()
        except asyncio.CancelledError:
            answer = answer_for(Stopping("the request was given up"))
        except Exception as error:
            answer = answer_for(error)
        self._reply(request, answer)
        if not shown:
            work.undelivered()
        elif self._write_paused:
            self._handing = work
        else:
            work.delivered()
        self._proceed()

    def _may_have_left(self, request: Request, work: Work) -> bool:
        """Whether the client may have closed, and it is not known yet that it still reads: then it is asked as in
        `_probe`, and its system acknowledges that, or ends the connection. While what it has sent does not fit here,
        its system cannot tell that it has closed."""
        if not self._eof and not self._read_paused and not has_closed(self._transport):
            return False
        now = self._service.loop.time()
        if self._questioned is None or self._questioned[0] is not work:
            self._questioned = work, now
            if request.version != "1.0":  # which cannot be asked
                self._transport.write(CONTINUE)
            return True
        if now - self._questioned[1] > _LONGEST_DOUBT:
            self._transport.abort()
            return True
        if request.version == "1.0":
            return self._eof or has_closed(self._transport)
        return unacknowledged(self._transport) > 0

    def _reply(self, request: Request, answer: Answer) -> None:
        service, transport = self._service, self._transport
        keep_alive = request.keep_alive and not service.draining
        service.answers[answer.status // 100] += 1
        self._since = service.now
        start = head(answer, keep_alive=keep_alive)
        if len(answer.body) < _ONE_WRITE:
            transport.write(start + answer.body)
        else:
            transport.writelines([start, answer.body])
        if not keep_alive:
            self._deaf = self._ending = True
            transport.close()

    def _ask_app(self, request: Request) -> None:
        service = self._service
        try:
            cycle = AppCycle(
                request,
                self._transport,
                keep_alive=request.keep_alive and not service.draining,
                answered=self._app_answered,
                count=service.count,
            )
        except Refused as refused:
            self._refuse(refused.answer)
            return
        self._current, self._cycle = request, cycle
        task = service.loop.create_task(cycle.run_asgi(service.app))  # type: ignore[arg-type]
        service.tasks.add(task)
        task.add_done_callback(service.tasks.discard)

    def _app_answered(self) -> None:
        self._current = self._cycle = None
        self._since = self._service.now
        # Not at once: this is called by the application, perhaps while it handles an error.
        self._service.loop.call_soon(self._proceed)

    def _refuse(self, answer: Answer) -> None:
        """Answer and close, after the requests before it."""
        self._deaf = True
        self._reading = NOTHING
        if self._must_wait():
            self._ahead.append(answer)
        else:
            self._hang_up(answer)

    def _hang_up(self, answer: Answer) -> None:
        """Closing while the client still sends would make its system throw the answer away, so: read on for a while."""
        if self._transport.is_closing():
            return
        self._service.count(answer.status)
        self._transport.write(head(answer, keep_alive=False) + answer.body)
        self._held = b""
        if self._eof:
            self._transport.close()
            return
        self._lingering = True
        self._since = self._service.now
        self._transport.write_eof()
        self._resume_reading()
        if self._service.draining:
            self._service.loop.call_later(_LINGER_AT_THE_END, self._transport.abort)

    def _proceed(self) -> None:
        """After an answer, or when the client has read some: on with the next request."""
        while self._ahead and self._is_free():
            waiting = self._ahead.pop(0)
            if isinstance(waiting, Request):
                self._begin(waiting)
            else:
                self._hang_up(waiting)
        if self._is_free() and self._reading == BODY and self._request.undecided:
            self._ask_for(self._request)
        if self._held and self._is_free():
            held, self._held = self._held, b""
            self._feed(held)
        if not self._is_free() or self._ahead or self._held:
            return
        if self._eof:
            self._transport.close()
            return
        if self._service.draining:
            self.shutdown()
            return
        if self._reading == BODY and self._request.expects_continue:
            self._ask_for_body()
        self._resume_reading()

    def _is_free(self) -> bool:
        busy = self._current or self._write_paused or self._pausing or self._lingering
        return not (busy or self._transport.is_closing())
