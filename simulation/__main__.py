"""`python -m simulation`: runs worlds and reports what is wrong with them. `make simulate` calls it."""

import argparse
import sys
import time

from simulation.draws import DRAWN, Options
from simulation.run import shrunk, simulate


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--options", type=Options.parse, default=DRAWN, help="see Options: seconds=30,faults=1+4")
    parser.add_argument("--verbose", action="store_true", help="print every fault, and a line for each log event")
    chosen = parser.parse_args(arguments)
    failed = 0
    virtual = 0.0
    began = time.process_time()
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        world = simulate(seed, chosen.options)
        virtual += world.kernel.seconds
        if chosen.verbose:
            size = f"{len(world.proxies)} proxies, {len(world.clients)} clients"
            print(f"seed {seed}: {world.options}: {size}, trace {world.kernel.trace}")
            print(*(f"  {number}: {fault}" for number, fault in world.faults), sep="\n")
        if world.problems:
            failed += 1
            print(f"seed {seed} fails:", *world.problems, sep="\n  ")
            print(f"  replay: make simulate SEED={seed} OPTIONS={shrunk(world)}")
    spent = time.process_time() - began
    took = f"{virtual:,.0f} s in {spent:.1f} s of CPU ({virtual / spent:.0f} times as fast)"
    print(f"{chosen.seeds - failed} of {chosen.seeds} seeds passed, {took}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
