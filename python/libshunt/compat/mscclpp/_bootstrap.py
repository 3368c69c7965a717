# SPDX-License-Identifier: MIT
"""
The ranks of a group over TCP: a star around rank 0, which hands messages on.

Every connection begins with a greeting, whose token is that of the group's unique id; who does not know it is dropped.
A group that is made from an address alone has no token: anyone who reaches the port can join, as with MSCCL++. Nothing
waits without an end: for the group to form FORM_S, for a message WAIT_S, and not at all for a rank that has left.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import struct
import threading
import time
import weakref
from collections import defaultdict

from libshunt import Error, _fork

FORM_S = 30.0
WAIT_S = 1800.0
_MAGIC = b"shunt-group-1\0\0\0"
_TOKEN_BYTES = 16
_GREETING = struct.Struct(f"<16s{_TOKEN_BYTES}sII")  # magic, token, rank, ranks
_FRAME = struct.Struct("<IIiQ")  # from, to, tag, bytes
_LIMIT = 1 << 30
# Tags of the group's own; programs use 0 and more.
_GATHER, _LOST = -1, -2


class _Peer:
    """A connection. Several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._lock = threading.Lock()

    def send(self, source: int, target: int, tag: int, data: bytes) -> None:
        with self._lock:
            self.socket.sendall(_FRAME.pack(source, target, tag, len(data)) + data)

    def receive(self) -> tuple[int, int, int, bytes]:
        source, target, tag, size = _FRAME.unpack(_exactly(self.socket, _FRAME.size))
        if size > _LIMIT:
            raise OSError("a message that is too long")
        return source, target, tag, _exactly(self.socket, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class TcpBootstrap:
    """What the ranks of a group know of each other before they have a communicator."""

    @classmethod
    def create(cls, rank: int, n_ranks: int) -> TcpBootstrap:
        return cls(rank, n_ranks)

    def __init__(self, rank: int, n_ranks: int) -> None:
        self._generation = _fork.generation()
        self._peers: dict[int, _Peer] = {}  # rank 0: all others; others: rank 0
        self._listener: socket.socket | None = None
        if n_ranks < 1 or not 0 <= rank < n_ranks:
            raise Error(f"rank {rank} of {n_ranks} ranks: expected 0 to {n_ranks - 1}")
        self._rank, self._n_ranks = rank, n_ranks
        self._token = bytes(_TOKEN_BYTES)
        self._boxes: defaultdict[tuple[int, int], queue.SimpleQueue[bytes]] = defaultdict(queue.SimpleQueue)
        self._lost: set[int] = set()
        self._changed = threading.Condition()
        self._hosts: list[bytes] = []
        _groups.add(self)

    def create_unique_id(self) -> bytes:
        """Of rank 0, for all: where it listens, and the token."""
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        host = _own_address()
        self._listen(host, 0)
        assert self._listener is not None
        port = self._listener.getsockname()[1]
        return self._token + struct.pack("<H", port) + host.encode()

    def initialize(self, where: bytes | str) -> None:
        """Joins the group: by a unique id, or by INTERFACE:ADDRESS:PORT of rank 0."""
        if isinstance(where, str):
            host, port = _trio(where)
        else:
            self._token = bytes(where[:_TOKEN_BYTES])
            (port,) = struct.unpack_from("<H", where, _TOKEN_BYTES)
            host = where[_TOKEN_BYTES + 2 :].decode()
        deadline = time.monotonic() + FORM_S
        if self._rank == 0:
            if self._listener is None:
                self._listen(host, port)
            self._accept(deadline)
        else:
            self._connect(host, port, deadline)
        for peer in self._peers.values():
            threading.Thread(target=self._read, args=(peer,), daemon=True, name="shunt-group").start()
        self._hosts = self.all_gather(_host())

    def get_rank(self) -> int:
        return self._rank

    def get_n_ranks(self) -> int:
        return self._n_ranks

    def get_n_ranks_per_node(self) -> int:
        """Ranks on this host."""
        return self._hosts.count(_host()) if self._hosts else self._n_ranks

    def get_n_ranks_per_ipc_domain(self) -> int:
        return self.get_n_ranks_per_node()

    def rank_on_host(self) -> int:
        return self._hosts[: self._rank].count(_host())

    def barrier(self) -> None:
        self.all_gather(b"")

    def all_gather(self, data: bytes) -> list[bytes]:
        """Everyone's data, by rank."""
        if self._rank:
            self.send(data, 0, _GATHER)
            packed = self.recv(0, _GATHER)
            found, at = [], 0
            while at < len(packed):
                (size,) = struct.unpack_from("<Q", packed, at)
                found.append(packed[at + 8 : at + 8 + size])
                at += 8 + size
            return found
        found = [data] + [self.recv(rank, _GATHER) for rank in range(1, self._n_ranks)]
        packed = b"".join(struct.pack("<Q", len(one)) + one for one in found)
        for rank in range(1, self._n_ranks):
            self.send(packed, rank, _GATHER)
        return found

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's data."""
        return self.all_gather(data if self._rank == 0 else b"")[0]

    def send(self, data: bytes, peer: int, tag: int) -> None:
        self._check(peer)
        if peer == self._rank:
            self._arrived(peer, tag, data)
            return
        try:
            self._peers[peer if self._rank == 0 else 0].send(self._rank, peer, tag, data)
        except OSError:
            raise Error(f"rank {peer if self._rank == 0 else 0} of the group has left") from None

    def recv(self, peer: int, tag: int) -> bytes:
        self._check(peer)
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            box = self._boxes[peer, tag]
            while box.empty():
                if self._lost & {peer, 0} - {self._rank}:
                    raise Error(f"rank {peer if peer in self._lost else 0} of the group has left")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise Error(f"rank {peer} of the group has sent nothing for {WAIT_S:.0f} s")
            return box.get()

    def close(self) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                if not self._is_parents():
                    peer.socket.shutdown(socket.SHUT_RDWR)
            peer.socket.close()
        if self._listener is not None:
            self._listener.close()

    def _is_parents(self) -> bool:
        """This process is a forked child of the group's, and has copies of its sockets, but not its threads."""
        return self._generation != _fork.generation()

    def __del__(self) -> None:
        self.close()

    def _check(self, peer: int) -> None:
        if self._is_parents():
            raise Error("the group is that of the parent of this process, which cannot use it; make one after the fork")
        if not 0 <= peer < self._n_ranks:
            raise Error(f"rank {peer}: expected 0 to {self._n_ranks - 1}")

    def _arrived(self, source: int, tag: int, data: bytes) -> None:
        with self._changed:
            self._boxes[source, tag].put(data)
            self._changed.notify_all()

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._lost.add(rank)
            self._changed.notify_all()

    def _read(self, peer: _Peer) -> None:
        try:
            while True:
                source, target, tag, data = peer.receive()
                if tag == _LOST:
                    self._leave(source)
                elif target == self._rank:
                    self._arrived(source, tag, data)
                elif self._rank == 0 and target in self._peers:
                    with contextlib.suppress(OSError):
                        self._peers[target].send(source, target, tag, data)
        except (OSError, EOFError):
            pass
        gone = next((rank for rank, one in self._peers.items() if one is peer), 0)
        self._leave(gone)
        if self._rank == 0:
            for rank, other in self._peers.items():
                if rank != gone:
                    with contextlib.suppress(OSError):
                        other.send(gone, rank, _LOST, b"")

    def _listen(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(self._n_ranks + 8)
        except OSError as error:
            listener.close()
            raise Error(f"rank 0 cannot listen at {host}:{port}: {error.strerror}") from None
        self._listener = listener

    def _accept(self, deadline: float) -> None:
        assert self._listener is not None
        lock = threading.Lock()
        complete = threading.Event()

        def greet(connection: socket.socket) -> None:
            said = ""
            try:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                magic, token, rank, n_ranks = _GREETING.unpack(_exactly(connection, _GREETING.size))
                if magic != _MAGIC or not secrets.compare_digest(token, self._token):
                    raise EOFError
                with lock:
                    if n_ranks != self._n_ranks:
                        said = f"rank 0 says that the group has {self._n_ranks} ranks, and rank {rank} says {n_ranks}"
                    elif not 0 < rank < n_ranks or rank in self._peers:
                        said = f"there is a rank {rank} already, or there cannot be"
                    else:
                        self._peers[rank] = _Peer(connection)
                    connection.sendall(struct.pack("<H", len(said)) + said.encode())
                    if len(self._peers) == self._n_ranks - 1:
                        complete.set()
                if not said:
                    return
            except (OSError, EOFError):
                pass
            connection.close()

        while not complete.is_set() and self._n_ranks > 1:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = [rank for rank in range(1, self._n_ranks) if rank not in self._peers]
                raise Error(f"ranks {missing} have not come within {FORM_S:.0f} s")
            # Greetings come while it waits for further connections.
            self._listener.settimeout(min(left, 0.05))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=greet, args=(connection,), daemon=True).start()
        self._listener.close()
        self._listener = None

    def _connect(self, host: str, port: int, deadline: float) -> None:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Error(f"rank 0 of the group does not answer at {host}:{port}; waited {FORM_S:.0f} s")
            try:
                connection = socket.create_connection((host, port), timeout=left)
                connection.settimeout(left)
                connection.sendall(_GREETING.pack(_MAGIC, self._token, self._rank, self._n_ranks))
                (size,) = struct.unpack("<H", _exactly(connection, 2))
                said = _exactly(connection, size).decode("utf-8", "replace")
            except (OSError, EOFError):
                # Not there yet, or another group's that ends.
                threading.Event().wait(0.02)
                continue
            if said:
                connection.close()
                raise Error(said)
            self._peers[0] = _Peer(connection)
            return


def _close_copies() -> None:
    """In a forked child: its copies would keep the connections open when its parent has died."""
    for group in list(_groups):
        group.close()


_groups: weakref.WeakSet[TcpBootstrap] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_copies)


def _trio(text: str) -> tuple[str, int]:
    interface, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if not interface or not host or not port.isdigit() or int(port) > 65535:
        raise Error(f'"{text}" is no INTERFACE:ADDRESS:PORT, such as eth0:10.0.0.1:50000')
    return host.strip("[]"), int(port)


def _host() -> bytes:
    """The same for the ranks of a host, and for no other."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read().strip()
    except OSError:
        boot = b""
    return os.environ.get("MSCCLPP_HOSTID", socket.gethostname()).encode() + b"/" + boot


def _own_address() -> str:
    """That of the interface with the default route, or the loopback's. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
