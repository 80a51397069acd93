"""No rank waits for a dead one: each keeps a connection to rank 0, and one that ends unannounced ends the job.

Launchers end the other ranks, too, but not all of them do, and not all say which rank has died.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading

DEAD = 137          # the exit code, as for a process that was killed
SECONDS = 3         # that a connection may take
GOODBYE = b"\n"     # what a rank sends that ends and has said why
# When a machine that is silent counts as dead: it is asked after 3 seconds, then each second, 5 times.
KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}


class Watch:
    """The connections of a rank of an `MPIWorld`: those of rank 0 to all others, or one to rank 0.

    All ranks make theirs at the same time. A rank that cannot connect, because of a firewall, is not watched.
    """

    def __init__(self, world):
        self.world, self.peers = world, {}      # connection -> who is there, in words
        me = f"{world.name} (process {os.getpid()})"
        if world.rank == 0:
            alone, secret = world.local_size == world.size, secrets.token_hex(16)
            with socket.create_server(("127.0.0.1" if alone else "", 0), backlog=world.size) as server:
                hosts = ["127.0.0.1"] if alone else [world.host, own_address()]
                world.tell("watch", {"who": me, "hosts": hosts, "port": server.getsockname()[1], "secret": secret})
                world.barrier()                 # now all have connected who can
                self._accept(server, secret)
            world.idle = True
        else:
            _, leader, _ = world.hear()
            connection = connect(leader["hosts"], leader["port"])
            if connection:
                connection.sendall(json.dumps([leader["secret"], me]).encode() + b"\n")
                self.peers[connection] = leader["who"]
            world.barrier()
        for connection in self.peers:
            stay_awake(connection)
        threading.Thread(target=self._run, daemon=True).start()

    def say_goodbye(self):
        """Tell the others that this rank ends, and has said why."""
        for connection in self.peers:
            with contextlib.suppress(OSError):
                connection.sendall(GOODBYE)

    def _accept(self, server, secret):
        server.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = server.accept()
                connection.settimeout(SECONDS)
                with contextlib.suppress(OSError, ValueError):
                    told, who = json.loads(connection.makefile().readline(1000))
                    if told == secret:
                        self.peers[connection] = who

    def _run(self):
        """Wait until a connection ends."""
        with selectors.DefaultSelector() as selector:
            for connection in self.peers:
                selector.register(connection, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    self._ended(key.fileobj)

    def _ended(self, connection):
        """End this rank, unless all are ending; if the other one has not said why it ends, say who has died."""
        try:
            died = connection.recv(1) != GOODBYE
        except OSError:
            died = True
        if self.world.ended:
            threading.Event().wait()            # the main thread ends the process
        if died and self.world.rank < 2:        # not all of them, if rank 0 dies
            os.write(2, f"npgpt: {self.peers[connection]} has died: training stops; continue with --resume\n".encode())
        self.say_goodbye()
        self.world.abort(DEAD)


def connect(hosts, port):
    """A connection to the first of these hosts that answers, or None."""
    for host in hosts:
        with contextlib.suppress(OSError):
            return socket.create_connection((host, port), SECONDS)


def own_address():
    """The address of this machine in its network, or 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))         # sends nothing; the address is one for documentation (RFC 5737)
        return probe.getsockname()[0]
    return "127.0.0.1"


def stay_awake(connection):
    """Let the system ask regularly whether the other machine is still there."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
