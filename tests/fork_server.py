"""A process that has imported the project and forks a child for each command that a test runs.

Importing jax, flax, orbax, grain and vit_jax costs 5 s of CPU; a fork costs 0.05 s. The server has
not started a JAX backend and has one thread, which makes forking safe (both are checked). A child
is then what `python -m vit_jax ...` is right after its imports: it reads XLA_FLAGS when its backend
starts, and signals go to its own pid. `tests/processes.py` is the client.

Each connection carries one request: JSON, with the file descriptors of stdout and stderr. The
answers are {"pid": ...} and, when the child has ended, {"returncode": ...}. The server ends when
the last connection is closed.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

PRELOADED = ("jax", "flax.nnx", "optax", "orbax.checkpoint", "grain", "tensorflow_datasets",
             "matplotlib.pyplot", "tensorboard.summary.writer.record_writer")  # fmt: skip
# Scripts that are run as programs of their own, with libraries that need not be installed.
SKIPPED = ("__main__", "tfds")
MOST_BYTES = 1 << 17


def preload():
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in PRELOADED:
        importlib.import_module(name)
    import vit_jax

    for module in pkgutil.walk_packages(vit_jax.__path__, "vit_jax."):
        if module.name.rpartition(".")[2] not in SKIPPED:
            importlib.import_module(module.name)


def check_safe_to_fork():
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    # jemalloc, which pyarrow brings, stops its thread for a fork.
    threads = [name for name in threads if "jemalloc" not in name]
    if len(threads) != 1:
        raise RuntimeError(f"an import started threads: {threads}")
    from jax._src import xla_bridge  # There is no public way to ask.

    if xla_bridge.backends_are_initialized():
        raise RuntimeError("an import started a JAX backend")


def serve(path):
    """Serves until the last client is gone; returns the request in each child."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen(100)
    Path(f"{path}.new").rename(path)  # A client that sees the path can connect.
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    clients, children = set(), {}
    had_clients = False
    while clients or not had_clients:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                clients.add(client)
                had_clients = True
                selector.register(client, selectors.EVENT_READ)
            elif key.fileobj in children:
                client = children.pop(key.fileobj)
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                _, status = os.waitpid(key.data, 0)
                answer(client, {"returncode": os.waitstatus_to_exitcode(status)})
            else:
                client: Any = key.fileobj
                message, descriptors = receive(client)
                if not message:
                    selector.unregister(client)
                    clients.discard(client)
                    client.close()
                    continue
                request = json.loads(message)
                pid = os.fork()
                if pid == 0:
                    for number, descriptor in enumerate(descriptors, start=1):
                        os.dup2(descriptor, number)
                    for opened in (listener, *clients):
                        opened.close()
                    for opened in (*children, *descriptors):
                        os.close(opened)
                    selector.close()
                    return request
                for descriptor in descriptors:
                    os.close(descriptor)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = client
                selector.register(pidfd, selectors.EVENT_READ, pid)
                answer(client, {"pid": pid})
    Path(path).unlink()
    os._exit(0)


def receive(client):
    try:
        return socket.recv_fds(client, MOST_BYTES, 2)[:2]
    except ConnectionResetError:  # A test that failed did not read the answer.
        return b"", []


def answer(client, content):
    with contextlib.suppress(OSError):  # The test did not wait for the end.
        client.send(json.dumps(content).encode())


def become(request):
    """Makes this child what a new process with this command would be."""
    import jax

    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[:0] = [p for p in request["env"].get("PYTHONPATH", "").split(":") if p]
    # JAX has read these when it was imported.
    for name in {*before, *request["env"]}:
        option, value = name.lower(), request["env"].get(name)
        if name.startswith("JAX_") and value != before.get(name) and option in jax.config.values:
            jax.config.update(option, parsed(value, jax.config.values[option]))
    arguments = request["arguments"]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, request["cwd"])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def parsed(value, now):
    if value is None:
        return None
    if isinstance(now, bool):
        return value.lower() in ("1", "true", "yes", "on")
    return type(now)(value) if isinstance(now, int | float) else value


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    check_safe_to_fork()
    gc.collect()
    gc.freeze()  # Children need not copy the pages of what is collected.
    warnings.resetwarnings()
    become(serve(sys.argv[1]))
