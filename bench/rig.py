"""A server of one's own, natively or under callgrind, and a client that is cheap enough to load it."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

from _server import free_port


class ServerError(Exception):
    """An error reply."""


def encode(words):
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


class Client:
    """One connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def read(self):
        """The next reply. An error is raised."""
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"+":
            return rest.decode()
        raise ServerError(rest.decode(errors="backslashreplace") or "the server closed the connection")

    def call(self, *words):
        self.socket.sendall(encode(words))
        return self.read()

    def many(self, commands, batch=100):
        """Encoded commands, pipelined; the last reply."""
        last = None
        for at in range(0, len(commands), batch):
            part = commands[at : at + batch]
            self.socket.sendall(b"".join(part))
            for _ in part:
                last = self.read()
        return last

    def info(self, section):
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


class Server:
    """A running server in a folder of its own; both go at the end of a `with`."""

    def __init__(self, program, modules, options=(), callgrind=False):
        self.dir = tempfile.mkdtemp(prefix="sluice-bench-")
        self.dumps = 0
        self.port = free_port()
        command = [program, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.dir]
        command += ["--enable-debug-command", "yes", *options]
        for module in modules:
            command += ["--loadmodule", os.path.abspath(module)]
        if callgrind:
            # Counted is what runs inside the function that executes a command; the network is not.
            tool = ["--tool=callgrind", f"--callgrind-out-file={self.dir}/counted", "--collect-atstart=no"]
            command = ["valgrind", *tool, "--toggle-collect=processCommand", *command]
        with open(f"{self.dir}/log", "w") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
        try:
            self.client = self._first_client()
        except BaseException:
            self.close()
            raise

    def _first_client(self):
        for _ in range(600):
            try:
                client = Client(self.port)
                if client.call("PING") == "PONG":
                    return client
            except (OSError, ServerError):
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        with open(f"{self.dir}/log") as log:
            raise SystemExit("the server did not start:\n" + log.read()[-2000:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _monitor(self, word):
        """Has callgrind do something.

        It looks for orders now and then while its program runs, so an idle server is kept going by connections, which run no
        command. vgdb could wake it by ptrace instead, but on a busy machine both may then wait for each other for ever.
        """
        command = ["vgdb", f"--pid={self.process.pid}", "--wait=10", "--max-invoke-ms=0", word]
        order = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while order.poll() is None and time.monotonic() < deadline:
            socket.create_connection(("127.0.0.1", self.port)).close()
            time.sleep(0.002)
        if order.poll() is None:
            order.kill()
        if order.wait() != 0:
            raise SystemExit(f"callgrind did not take the order to {word}")

    def count(self, work):
        """Instructions inside processCommand while `work` runs, and the file that tells where."""
        self._monitor("zero")
        work()
        self._monitor("dump")
        self.dumps += 1
        file = f"{self.dir}/counted.{self.dumps}"
        for _ in range(400):
            if os.path.exists(file):
                with open(file) as dump:
                    total = re.search(r"^(?:totals|summary):\s*(\d+)", dump.read(), re.M)
                if total:
                    return int(total.group(1)), file
            time.sleep(0.02)
        raise SystemExit("callgrind wrote no counts")
