"""Attacks of strangers on the ports of a soak's daemon, at full rate: what a peer can send before it has said who it is."""

import collections
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator

BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_HEADERS = 4
CONNECTIONS = 4  # of an attack, at a time

Frames = Callable[[], Iterator[bytes]]  # of one connection, without end


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field of HPACK without indexing; names and values below 127 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def call_headers(path: str) -> bytes:
    return b"".join(literal(name, value) for name, value in (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers")))


CALL = call_headers("/foredraft.v1.GenerationService/Generate")


def headers_without_end() -> Iterator[bytes]:
    yield BEGIN + frame(HEADERS, 0, 1, b"\0\x04name\x7f\xff\xff\xff\x7f")
    while True:
        yield frame(CONTINUATION, 0, 1, b"c" * 400) * 16


def resets() -> Iterator[bytes]:
    yield BEGIN
    stream = 1
    while True:
        yield b"".join(frame(HEADERS, END_HEADERS, id_, CALL) + frame(RST_STREAM, 0, id_, bytes(4)) for id_ in range(stream, stream + 200, 2))
        stream += 200


def unfinished_calls() -> Iterator[bytes]:
    yield BEGIN
    stream = 1
    while True:
        yield b"".join(frame(HEADERS, END_HEADERS, id_, CALL) for id_ in range(stream, stream + 200, 2))
        stream += 200


def repeated(what: bytes) -> Frames:
    def frames() -> Iterator[bytes]:
        yield BEGIN
        while True:
            yield what * 500
    return frames


HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost"  # for idle()

FLOODS: dict[str, Frames] = {
    "flood of headers": headers_without_end,
    "flood of resets": resets,
    "flood of unfinished calls": unfinished_calls,
    "flood of pings": repeated(frame(PING, 0, 0, bytes(8))),
    "flood of settings": repeated(frame(SETTINGS, 0, 0, b"\0\3\0\0\0\1")),
    "flood of empty data": repeated(frame(DATA, 0, 1, b"")),
}


class Connection:
    """Sends without waiting. `over` once the daemon has closed it or refuses more for now."""

    def __init__(self, address: tuple[str, int], source: str, frames: Frames) -> None:
        self.socket = socket.create_connection(address, 10, (source, 0))
        self.socket.setblocking(False)
        self.frames = frames()
        self.unsent = b""
        self.over = False

    def push(self) -> None:
        try:
            self.unsent = self.unsent or next(self.frames)
            self.unsent = self.unsent[self.socket.send(self.unsent):]
            while self.socket.recv(65536):
                pass
            self.over = True  # the daemon has said its last
        except BlockingIOError:
            pass
        except OSError:
            self.over = True


def flood(address: tuple[str, int], kind: str, seconds: float) -> int:
    """From addresses of their own, so that the daemon can tell strangers from the soak's clients. Returns how many connections it took."""
    frames, opened, connections, end = FLOODS[kind], 0, [], time.monotonic() + seconds
    while time.monotonic() < end:
        while len(connections) < CONNECTIONS:
            try:
                connections.append(Connection(address, f"127.0.1.{opened % 250 + 1}", frames))
            except OSError:
                time.sleep(0.05)  # no place is free
                break
            opened += 1
        for connection in connections:
            connection.push()
            if connection.over:
                connection.socket.close()
        connections = [connection for connection in connections if not connection.over]
    for connection in connections:
        connection.socket.close()
    return opened


def idle(address: tuple[str, int], count: int, seconds: float, hello: bytes = BEGIN) -> None:
    """New connections without end that say `hello` and nothing more, as many at a time as there may be descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets: collections.deque[socket.socket] = collections.deque()
    opened, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            sockets.append(socket.create_connection(address, 10, (f"127.0.1.{opened % 250 + 1}", 0)))
            sockets[-1].send(hello)
        except OSError:
            time.sleep(0.01)
        opened += 1
        while len(sockets) > min(count, hard - 100):
            sockets.popleft().close()
    for connection in sockets:
        connection.close()


def drip(address: tuple[str, int], count: int, seconds: float) -> None:
    """HTTP requests whose bodies come byte by byte."""
    sockets = []
    for i in range(count):
        sockets.append(socket.create_connection(address, 10, (f"127.0.1.{i % 250 + 1}", 0)))
        sockets[-1].sendall(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.2)
        for connection in sockets:
            try:
                connection.send(b"x")
            except OSError:
                pass  # the daemon closed it
    for connection in sockets:
        connection.close()
