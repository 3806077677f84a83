"""TVM's RPC server, made to survive the programs it runs: ``python -m tencost.workers.server --tracker H:P --key K``.

In TVM 0.27 the first program that crashes ends the thread that takes the next client: the server's process stays, but
its device is gone until somebody starts it again. Here the crash ends its session only. Everything else is
TVM's server, and a client sees no difference.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

FIRST_PORT = 9090


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m tencost.workers.server", description=__doc__)
    parser.add_argument("--tracker", required=True, help="address of the RPC tracker, host:port")
    parser.add_argument("--key", required=True, help="name of this kind of device")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="first port to try")
    parser.add_argument("--port-end", type=int, default=FIRST_PORT + 109, help="end of the ports")
    parser.add_argument("--custom-addr", help="address that the tracker tells clients")
    parser.add_argument(
        "--no-fork", action="store_true", help="start sessions anew; needed for ROCm and Metal"
    )
    chosen = parser.parse_args(arguments)
    host, colon, port = str(chosen.tracker).rpartition(":")
    if not (colon and host and port.isdigit()):
        parser.error(f"expected --tracker host:port, found {chosen.tracker!r}")

    # Sessions are forks, in which CUDA fails once it was initialized before. That is what TVM's import does where it
    # finds PyTorch: tvm_ffi asks torch.cuda.is_available(), unless this is set. The serving process inherits it.
    os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    from tvm import rpc

    server = rpc.Server(
        chosen.host,
        chosen.port,
        chosen.port_end,
        key=chosen.key,
        tracker_addr=(host, int(port)),
        custom_addr=chosen.custom_addr,
        no_fork=chosen.no_fork,
        server_init_callback=survive_crashes,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # or the process that serves would stay
    try:
        server.proc.join()
    finally:
        server.terminate()


def survive_crashes() -> None:
    """Let the server of this process go on after a session whose process crashed."""
    from tvm.rpc import server

    serve: Any = server._serving

    def serving(sock: Any, addr: Any, opts: Any, load_library: Any) -> None:
        folder = os.getcwd()  # noqa: PTH109 - a sibling of the chdir below
        try:
            serve(sock, addr, opts, load_library)
        except RuntimeError as error:
            logging.getLogger("RPCServer").warning("session of %s: %s", addr, error)
            os.chdir(folder)
            sock.close()

    server._serving = serving


if __name__ == "__main__":
    main()
