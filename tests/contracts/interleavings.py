"""Run threads one storage operation at a time, in every order that makes a difference."""

import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sparse_ncp.worker.store.blobs import Blob, Blobs

Answer = TypeVar("Answer")
# Which thread goes on, and whether it is killed instead.
Choice = tuple[int, bool]


class Killed(BaseException):
    """The process of a thread has died: every further operation of it raises this."""


class Threads:
    """Threads that wait before every step until they are chosen."""

    def __init__(self, programs: Sequence[Callable[["Steps"], None]]) -> None:
        self.errors: list[BaseException] = []
        self._arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._steps = [Steps(self._arrived) for _ in programs]
        self._waiting: list[int] = []
        self.last = -1
        self.switches = 0  # how often a thread that could have gone on was interrupted
        for number, (program, steps) in enumerate(zip(programs, self._steps, strict=True)):
            threading.Thread(target=self._run, args=(program, steps), daemon=True).start()
            if self._arrived.get():
                self._waiting.append(number)

    def _run(self, program: Callable[["Steps"], None], steps: "Steps") -> None:
        try:
            program(steps)
        except Killed:
            pass
        except BaseException as error:
            self.errors.append(error)
        self._arrived.put(False)

    def choices(self, kill: bool) -> list[Choice]:
        """Return what may happen next; nothing once all threads have ended."""
        killed = any(steps.killed for steps in self._steps)
        fates = (False, True) if kill and not killed else (False,)
        return [(number, fate) for fate in fates for number in self._waiting]

    def take(self, choice: Choice) -> None:
        """Let one thread make its next step, or die before it."""
        number, killed = choice
        self.switches += number != self.last and self.last in self._waiting
        self.last = number
        self._steps[number].killed = killed
        self._steps[number].go.release()
        if not self._arrived.get():
            self._waiting.remove(number)

    def seen(self) -> tuple[tuple[str, ...], ...]:
        """Return what every thread has found so far: all that its next steps depend on."""
        return tuple((*steps.found, str(steps.killed)) for steps in self._steps)

    def kill(self) -> None:
        """End all threads."""
        while self._waiting:
            self.take((self._waiting[0], True))


class Steps:
    """The steps of one thread and of those that it starts, of which one at most may step at a time."""

    def __init__(self, arrived: "queue.SimpleQueue[bool]") -> None:
        self.found: list[str] = []
        self.go = threading.Semaphore(0)
        self.killed = False
        self._arrived = arrived

    def step(self, action: Callable[[], Answer]) -> Answer:
        """Wait to be chosen, and act."""
        if not self.killed:
            self._arrived.put(True)
            self.go.acquire()
        if self.killed:
            raise Killed
        try:
            answer = action()
        except BaseException as error:
            self.found.append(type(error).__name__)
            raise
        self.found.append(str([blob.name for blob in answer] if isinstance(answer, list) else answer))
        return answer


class SteppedBlobs:
    """Blobs whose operations are steps, apart from those on names that only one thread uses.

    Parameters
    ----------
    blobs : Blobs
        The blobs.
    steps : Steps
        The steps of the thread.
    shared : pattern
        The names and prefixes whose order of operations matters.
    """

    def __init__(self, blobs: Blobs, steps: Steps, shared: re.Pattern[str]) -> None:
        self._blobs = blobs
        self._step = steps.step
        self._shared = shared

    def put(self, name: str, content: bytes, *, flush: bool = True) -> None:
        self._step(lambda: self._blobs.put(name, content, flush=False))

    def stat(self, name: str) -> Blob:
        found: list[Blob] = self._step(lambda: [self._blobs.stat(name)])
        return found[0]

    def list(self, prefix: str) -> Iterator[Blob]:
        return iter(self._step(lambda: [*self._blobs.list(prefix)]))

    def open(self, name: str) -> Any:
        opened: list[Any] = []
        self._step(lambda: opened.append(self._blobs.open(name)))
        return opened[0]

    def delete(self, name: str) -> None:
        if self._shared.fullmatch(name):
            self._step(lambda: self._blobs.delete(name))
        else:
            self._blobs.delete(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


def explore(
    begin: Callable[[], tuple[Threads, Callable[[], object]]],
    check: Callable[[Threads], None],
    kill: bool = False,
    max_switches: int | None = None,
) -> int:
    """Run threads in every order of their steps; return how many states there were.

    Parameters
    ----------
    begin : callable
        Makes the threads, and a function that describes what is stored.
    check : callable
        Called whenever all threads have ended.
    kill : bool, optional
        Whether one of the threads may also die before any of its steps.
    max_switches : int, optional
        Only orders in which a thread that could go on is interrupted at most so often.
    """
    seen: set[object] = set()
    orders: list[tuple[Choice, ...]] = [()]
    while orders:
        order = orders.pop()
        threads, stored = begin()
        for choice in order:
            threads.take(choice)
        while choices := threads.choices(kill):
            state = hash((stored(), threads.seen(), max_switches and (threads.last, threads.switches)))
            if state in seen:
                threads.kill()
                break
            seen.add(state)
            if max_switches is not None and threads.switches >= max_switches:
                choices = [choice for choice in choices if choice[0] == threads.last] or choices
            orders.extend((*order, choice) for choice in choices[1:])
            order = (*order, choices[0])
            threads.take(choices[0])
        else:
            check(threads)
    return len(seen)
