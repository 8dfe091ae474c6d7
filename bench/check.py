"""`make bench-check`: instructions a call against bench/baseline.toml; `write` as an argument makes the baseline anew.

A server's hash seed is random, and longer chains in its tables make a call up to 3 % dearer: so of some servers the least counts.
Most of a call is the server's own code, so a baseline is of one version; with another there is nothing to compare.
"""

import os
import re
import subprocess
import sys

import instructions
from works import FULL, WORKS

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "baseline.toml")
COUNT, SERVERS, ALLOWED = 1000, 3, 1.05
HEAD = """# Instructions a call inside processCommand, as `make bench-check` compares them; written by `scripts/bench-check write`.
# A change that makes a call dearer on purpose comes with a new baseline.
"""


def server_version(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    kind = "Valkey" if "valkey" in said.lower() else "Redis"
    return f"{kind} {re.search(r'v=([0-9.]+)', said).group(1)}"


def measure(program):
    quiet = lambda text: None
    took = instructions.table(program, [os.environ["SLUICE_MODULE"]], WORKS + FULL, ["ours"], COUNT, SERVERS, say=quiet)
    return {name: min(ways["ours"]) for name, ways in took.items()}


def read():
    """The server of the baseline, and the numbers. Each line is a key and a value, which takes no parser."""
    server, baseline = None, {}
    with open(FILE) as file:
        for line in file:
            name, equals, value = line.strip().partition(" = ")
            if name == "server":
                server = value.strip('"')
            elif equals and not name.startswith("#"):
                baseline[name.strip('"')] = float(value)
    return server, baseline


def main():
    program = os.environ["SLUICE_SERVER"]
    version = server_version(program)
    if sys.argv[1:] == ["write"]:
        took = measure(program)
        with open(FILE, "w") as file:
            file.write(f'{HEAD}server = "{version}"\n\n[instructions]\n')
            file.writelines(f'"{name}" = {value:.0f}\n' for name, value in took.items())
        print("sluice: bench/baseline.toml is written")
        return 0
    server, baseline = read()
    if version != server:
        print(f"sluice: SKIPPED bench-check: the baseline is of {server}, and the server here is {version}")
        return 0
    took, dearer = measure(program), []
    for name, value in took.items():
        if name not in baseline:
            dearer.append(f"{name}: not in the baseline")
            continue
        change = value / baseline[name]
        print(f"{name:36} {baseline[name]:8,.0f} {value:8,.0f} {100 * (change - 1):+6.1f} %")
        if change > ALLOWED:
            dearer.append(f"{name}: {baseline[name]:,.0f} -> {value:,.0f} instructions a call, more than +5 %")
    for line in dearer:
        print(f"sluice: {line}", file=sys.stderr)
    if dearer:
        print("sluice: if that is meant, write a new baseline: scripts/bench-check write", file=sys.stderr)
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
