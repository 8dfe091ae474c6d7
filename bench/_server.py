"""What the scripts in this folder share: a client of few lines, and a server of one's own. Python 3, nothing to install."""
import contextlib, os, random, shutil, socket, subprocess, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def program(given=None):
    """The server: what was given, SLUICE_SERVER, what `make` has put into the target folder, or the one in the PATH."""
    made = os.path.join(ROOT, "target/tools/redis-server")
    found = given or os.environ.get("SLUICE_SERVER") or (made if os.path.exists(made) else None)
    found = found or shutil.which("redis-server") or shutil.which("valkey-server")
    if not found:
        raise SystemExit("no redis-server in the PATH: say where with --server")
    return found


def module(given=None):
    path = os.path.abspath(given or os.environ.get("SLUICE_MODULE") or os.path.join(ROOT, "target/release/libsluice.so"))
    if not os.path.exists(path):
        raise SystemExit(f"{os.path.relpath(path)} is missing: run `make build` first")
    return path


class Client:
    """One connection. It counts the commands it sends; an error of the server's is an exception."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        self.sent = 0

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        self.sent += 1

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"-":
            raise RuntimeError(rest.decode(errors="backslashreplace"))
        return rest

    def __call__(self, *words):
        self.send(*words)
        return self.read()


def free_port():
    """A port that is free now, of those that systems do not give to outgoing connections, which come and go."""
    while True:
        port = random.randrange(10_000, 16_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def server(path, modules=(), prefix=()):
    """A server that lives as long as the block: its port and its process."""
    port, folder = free_port(), tempfile.mkdtemp(prefix="sluice-bench-")
    words = [*prefix, path, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    words += [word for one in modules for word in ("--loadmodule", one)]
    with open(os.path.join(folder, "log"), "w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        try:
            for _ in range(1200):
                with contextlib.suppress(OSError, RuntimeError):
                    Client(port)("PING")
                    break
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit("the server did not start:\n" + log.read()[-2000:])
                time.sleep(0.05)
            else:
                raise SystemExit("the server does not answer")
            yield port, process, folder
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
