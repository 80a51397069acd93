"""No rank waits for a dead one: every rank is connected to a watchman, a small process beside rank 0.

If a rank dies, the watchman says which one, and ends rank 0; if the watchman is gone, the other ranks end themselves.
Launchers do the like, but not all of them end the other ranks, and not all say which rank has died.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

SECRET = "NPGPT_WATCH"      # the variable of the environment with what ranks have to know
DEAD = 137                  # the exit code, as for a process that was killed
SECONDS = 3                 # that a connection may take
STOPS, FAILED = b"S", b"F"  # what a rank says before it ends: all is done, or it has said what went wrong
# When a machine that is silent counts as dead: it is asked after 3 seconds, then each second, 5 times.
KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}


class Watch:
    """The connection of a rank of an `MPIWorld` to the watchman. All ranks make theirs at the same time.

    A rank that cannot connect, because of a firewall, is not watched.
    """

    def __init__(self, world):
        self.connection, who = None, f"{world.name} (process {os.getpid()})"
        if world.rank == 0:
            alone, secret = world.local_size == world.size, secrets.token_hex(16)
            with socket.create_server(("127.0.0.1" if alone else "", 0), backlog=world.size) as server:
                self.connection, other = socket.socketpair()
                command = [sys.executable, "-IS", __file__, *map(str, (server.fileno(), other.fileno(), os.getpid()))]
                subprocess.Popen([*command, str(world.size), who], pass_fds=(server.fileno(), other.fileno()),
                                 env=os.environ | {SECRET: secret},     # other users can read a command line
                                 start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                other.close()
                hosts = ["127.0.0.1"] if alone else [world.host, own_address()]
                world.tell("watch", {"hosts": hosts, "port": server.getsockname()[1], "secret": secret})
            world.idle = True
        else:
            _, watchman, _ = world.hear()
            self.connection = connect(watchman["hosts"], watchman["port"])
            self.say(json.dumps([watchman["secret"], who]).encode() + b"\n")
            if self.connection:
                threading.Thread(target=self._end_with, args=(world,), daemon=True).start()

    def say(self, what):
        """Send bytes to the watchman, if there is one."""
        if self.connection:
            with contextlib.suppress(OSError):
                self.connection.sendall(what)

    def _end_with(self, world):
        """End this rank when the watchman is gone, unless all ranks stop."""
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        if not world.ended:
            os._exit(DEAD)


def connect(hosts, port):
    """A connection to the first of these hosts that answers, or None."""
    for host in hosts:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, port), SECONDS)
            keep_alive(connection)
            return connection


def own_address():
    """The address of this machine in its network, or 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))         # sends nothing; the address is one for documentation (RFC 5737)
        return probe.getsockname()[0]
    return "127.0.0.1"


def keep_alive(connection):
    """Let the system ask regularly whether the other machine is still there."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def watchman(server, leader, process, size, who, secret):
    """Watch rank 0 (the socket `leader`, its process and its name) and the ranks that connect and know the secret.

    Until all have connected, nobody knows which one has died first: the launcher ends the others at once.
    """
    ranks, stopping, connected = {leader: who}, False, 1
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(leader, selectors.EVENT_READ)
        while ranks:
            for key, _ in selector.select():
                if key.fileobj is server:
                    connection, name = greeted(server, secret)
                    if name:
                        ranks[connection], connected = name, connected + 1
                        selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj
                said = heard(connection)
                stopping |= said == STOPS
                if said == b"" and not stopping:
                    died = ranks[connection] if connected == size else "a rank"
                    sys.stderr.write(f"npgpt: {died} has died: training stops; continue with --resume\n")
                    sys.stderr.flush()
                if said == FAILED:
                    time.sleep(1)       # MPI and the launcher are ending all
                if not stopping:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                    return
                selector.unregister(connection)
                del ranks[connection]


def greeted(server, secret):
    """A new connection and the name of the rank, which is None if it does not know the secret."""
    connection, _ = server.accept()
    connection.settimeout(SECONDS)
    with contextlib.suppress(OSError, ValueError):
        told, name = json.loads(connection.makefile().readline(1000))
        if secrets.compare_digest(told, secret):
            keep_alive(connection)
            return connection, name
    return connection, None


def heard(connection):
    """What a rank says, b"" if it is gone."""
    try:
        return connection.recv(1)
    except OSError:
        return b""


if __name__ == "__main__":
    server, leader, process, size = map(int, sys.argv[1:5])
    watchman(socket.socket(fileno=server), socket.socket(fileno=leader), process, size, sys.argv[5], os.environ[SECRET])
