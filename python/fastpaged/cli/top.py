"""`fastpaged top`: what an engine's KV memory holds, live, drawn from the recording that it writes. The engine is not
asked: its scheduler's steps are replayed here."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.cli.screen import Screen
    from fastpaged.cli.top_frame import Rates, View
    from fastpaged.simulator.follower import FollowedStep, Follower

EXIT_NOTHING = 1  # there is no step to show
_WINDOW = 2.0  # seconds of the recording that rates are of
_NANOSECONDS = 1e9


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "top",
        help="watch the KV memory of an engine that records",
        description="Watch the KV memory of an engine that was started with record=FILE (--record FILE): what its "
        "slots are for, who holds its blocks, and what each request is charged for. Ctrl-C ends it. Of one that is "
        "finished, the end is shown, or with --speed all of it.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("file", metavar="FILE", help="the recording")
    parser.add_argument("--once", action="store_true", help="print one frame of what is there now, and exit")
    parser.add_argument(
        "--speed", type=_positive, metavar="X", help="play it from the beginning, X times as fast as it was"
    )
    parser.add_argument(
        "--interval", type=_positive, default=0.5, metavar="SECONDS", help="between two frames (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Shows frames until there are no more, and returns the exit status."""
    from fastpaged.cli.screen import Screen
    from fastpaged.cli.top_frame import frame
    from fastpaged.simulator.follower import Follower

    with Follower(args.file) as follower:
        with Screen(sys.stdout, keeps=args.once) as screen:
            top = Top(follower, screen, speed=args.speed, interval=args.interval, once=args.once)
            top.run()
        if top.view is None:
            print(f"fastpaged: error: {args.file} has no step yet", file=sys.stderr)
            return EXIT_NOTHING
        if args.speed is not None and sys.stdout.isatty():
            kept = Screen(sys.stdout, keeps=True)  # so that the end stays
            kept.show(frame(top.view, *kept.size(), kept.style))
    return 0


class Top:
    """Goes through the steps of a recording, and draws some of them."""

    def __init__(
        self,
        follower: Follower,
        screen: Screen,
        *,
        speed: float | None = None,
        interval: float = 0.5,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """speed: None draws what is newest, and waits for more. once: draws the newest, once."""
        self._follower = follower
        self._screen = screen
        self._speed = speed
        self._interval = interval
        self._once = once
        self._clock = clock
        self._sleep = sleep
        self._rates = RateMeter()
        self._began: float | None = None  # by the clock, when the recording's first step would have been over
        self._drawn = -interval  # when, by the clock
        self._trouble = ""
        self._step: FollowedStep | None = None
        self.view: View | None = None  # of the last frame

    def run(self) -> None:
        """Until the recording is over with `speed` or `once`, else for ever."""
        for step in self._follower.steps(self._wait):
            self._rates.add(step)
            self._step = step
            if step.differences and not self._trouble:
                self._trouble = f"the replay differs from the recording: {step.differences[0]}"
            if not self._once:
                self._keep_pace(step)
        self._draw("end")

    def _keep_pace(self, step: FollowedStep) -> None:
        """Sleeps until it is the step's turn; draws it if the last frame is old enough, or nothing newer is there."""
        if self._speed is not None:
            due = step.time / _NANOSECONDS / self._speed
            if self._began is None:
                self._began = self._clock() - due
            self._sleep(max(0.0, self._began + due - self._clock()))
        catches_up = self._speed is None and not step.is_last
        if self._clock() - self._drawn >= self._interval:
            self._draw("catching up" if catches_up else "live" if self._speed is None else f"x {self._speed:g}")

    def _wait(self) -> bool:
        """The follower has no more for now."""
        if self._once or self._speed is not None:
            return False
        if self._clock() - self._drawn >= self._interval:
            self._draw("live")
        self._sleep(self._interval / 4)
        return True

    def _draw(self, about: str) -> None:
        from fastpaged.cli.top_frame import View, frame

        self._drawn = self._clock()
        header = self._follower.header
        if self._step is None or header is None:
            if not self._once:
                self._screen.show(["waiting for the recording's first step"])
            return
        self.view = View(
            title=header.model,
            about=about,
            seconds=self._step.time / _NANOSECONDS,
            snapshot=self._step.scheduler.snapshot(),
            rates=self._rates.rates(),
            trouble=self._trouble,
        )
        self._screen.show(frame(self.view, *self._screen.size(), self._screen.style))


class RateMeter:
    """Rates over the last seconds of a recording, from one step after the other."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int, int]] = deque()  # when they were over; generated tokens, preemptions
        self._num_preemptions = 0
        self._hit_rate: float | None = None

    def add(self, step: FollowedStep) -> None:
        """The next one."""
        now = step.time / _NANOSECONDS
        plan, stats = step.plan, step.scheduler.stats
        self._steps.append((now, plan.num_samples, len(plan.preempted)))
        while now - self._steps[0][0] > _WINDOW:
            self._steps.popleft()
        self._num_preemptions = stats.num_preemptions
        looked_up = stats.num_prefix_tokens_looked_up
        self._hit_rate = stats.num_prefix_tokens_found / looked_up if looked_up else None

    def rates(self) -> Rates:
        """As they are by now: of the steps after the first in the window, over the time since that one."""
        from fastpaged.cli.top_frame import Rates

        (begin, *_), *others = self._steps
        seconds = others[-1][0] - begin if others else 0.0
        totals = [sum(step[place] for step in others) for place in (1, 2)]
        generated, preempted = (total / seconds if seconds > 0 else 0.0 for total in totals)
        return Rates(generated, preempted, self._num_preemptions, self._hit_rate)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r:.40}")
    return value
