"""A gRPC server (HTTP/2 without TLS) that answers with a stream. Writes its port when it serves.

A request of "COUNT SECONDS …" is answered by so many messages of 100 bytes, each after a pause.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]


def generate(request: bytes, _context: object) -> Iterator[bytes]:
    count, seconds, *_ = request.split()
    for _ in range(int(count)):
        time.sleep(float(seconds))
        yield b"x" * 100


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_stream_rpc_method_handler(generate)
    service = grpc.method_handlers_generic_handler("engine", {"Generate": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
