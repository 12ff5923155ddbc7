"""`python -m simulation`: runs worlds and reports what is wrong with them. `make simulate` calls it.

A run of one seed prints what was injected and checked. Of many seeds those that fail are printed, and how far it is.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from simulation.draws import DRAWN, Options
from simulation.run import shrunk, simulate
from simulation.world import World

PROGRESS_SECONDS: Final = 10.0


class Report(NamedTuple):
    """Of one seed. `text`: what is printed of it."""

    failed: bool
    virtual_seconds: float
    cpu_seconds: float
    text: str


def report(seed: int, options: Options, *, verbose: bool) -> Report:
    began = time.process_time()
    world = simulate(seed, options)
    lines = list(_described(world)) if verbose else []
    if world.problems:
        lines += [f"seed {seed} fails:", *(f"  {each}" for each in world.problems)]
        lines.append(f"  replay: make simulate SEED={seed} OPTIONS={shrunk(world)}")
    spent = time.process_time() - began
    return Report(bool(world.problems), world.kernel.seconds, spent, "\n".join(lines))


def _described(world: World) -> list[str]:
    parts = [f"{world.size} proxies", f"{len(world.clients)} clients", *sorted(world.parts)]
    checked = ", ".join(f"{count:,} {what}" for what, count in world.checked.items())
    return [
        f"seed {world.seed}: {world.options}",
        f"  {', '.join(parts)}; trace {world.kernel.trace}",
        *(f"  fault {number}: {fault}" for number, fault in world.faults),
        f"  checked: {checked}",
    ]


def _options(text: str) -> Options:
    try:
        return Options.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--options", type=_options, default=DRAWN, help="see Options: seconds=30,faults=1+4")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at once; one each CPU")
    parser.add_argument("--verbose", action="store_true", help="describe each seed")
    chosen = parser.parse_args(arguments)
    one = partial(report, options=chosen.options, verbose=chosen.verbose or chosen.seeds == 1)
    failed, virtual, spent = 0, 0.0, 0.0
    printed = time.monotonic()
    with ProcessPoolExecutor(chosen.jobs) as workers:
        for done, found in enumerate(workers.map(one, range(chosen.seed, chosen.seed + chosen.seeds)), 1):
            failed += found.failed
            virtual += found.virtual_seconds
            spent += found.cpu_seconds
            if found.text:
                print(found.text, flush=True)
            if time.monotonic() - printed > PROGRESS_SECONDS:
                printed = time.monotonic()
                print(f"{done:,} of {chosen.seeds:,} seeds, {failed} failed", file=sys.stderr)
    took = f"{virtual:,.0f} s in {spent:.1f} s of CPU ({virtual / spent:.0f} times as fast)"
    print(f"{chosen.seeds - failed:,} of {chosen.seeds:,} seeds passed, {took}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
