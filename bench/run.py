"""`make bench`: measures everything on one server program in one run, and writes docs/benchmarks.md.

Asked by the environment, as scripts/bench sets it: SLUICE_SERVER, SLUICE_MODULE, and SLUICE_BENCH_CELL if there is one.
"""

import os
import subprocess
import sys

import instructions
import page
import speed
import weight
from works import FULL, WORKS

COUNT, SERVERS = 2000, 3


def say(text):
    print(f"sluice: {text}", flush=True)


def main():
    program, module = os.environ["SLUICE_SERVER"], os.environ["SLUICE_MODULE"]
    cell = os.environ.get("SLUICE_BENCH_CELL")
    modules, ways = ([module, cell], ["plain", "ours", "lua", "cell"]) if cell else ([module], ["plain", "ours", "lua"])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(page.ROOT, "Cargo.toml")) as manifest:
        own = next(line.split('"')[1] for line in manifest if line.startswith("version = "))
    measured = {
        "ways": ways,
        "count": COUNT,
        "servers": SERVERS,
        "pipeline": speed.PIPELINE,
        "tries": speed.TRIES,
        "version": own,
        "server": " ".join(word for word in version.split() if word.split("=")[0] not in ("sha", "bits", "build")),
        "keys": weight.keys(program, modules),
        "full_windows": weight.full_windows(program, modules, say),
        "streams": weight.streams(program, modules, ways, say=say),
        "many_keys": speed.many_keys(program, modules, say=say),
        "speed": speed.table(program, modules, WORKS + FULL, ways, say=say),
        "with_aof": instructions.table(
            program,
            modules,
            [work for work in WORKS if work.with_aof],
            ["plain", "ours", "lua"],
            COUNT,
            SERVERS,
            options=["--appendonly", "yes"],
            say=say,
        ),
        # Last, and longest.
        "instructions": instructions.table(program, modules, WORKS + FULL, ways, COUNT, SERVERS, say=say),
    }
    page.write(measured)
    say("docs/benchmarks.md and docs/img are written")


if __name__ == "__main__":
    sys.exit(main())
