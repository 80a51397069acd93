"""Ranks in network namespaces, joined by slow links: a stand-in for machines in a slow network."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

# MPICH over TCP, also between processes of one machine; through libfabric, which was mostly faster than UCX here.
TCP = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}


def check(rates, steps):
    """Run `measure` on 2, 4 and 8 ranks. They share this machine's cores, so the compute of a step means nothing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # removes the namespaces
    scaling = [sys.executable, str(Path(__file__).parents[1] / "scaling.py"), "measure", "--steps", str(steps)]
    for rate, n in itertools.product(rates, (2, 4, 8)):
        print(f"\nlinks of {rate}, ", end="", flush=True)
        with namespaces(n, rate) as names:
            ranks = [["-n", "1", "ip", "netns", "exec", name, *scaling, ":"] for name in names]
            run(Path(sys.executable).with_name("mpiexec"), *itertools.chain(*ranks[:-1], ranks[-1][:-1]))


@contextlib.contextmanager
def namespaces(n, rate):
    """The names of n new network namespaces. Each sends and receives at most `rate`, and reaches only the others.

    tc's netem, which would add latency, is missing in some kernels; the latency is that of the kernel and of TCP.
    """
    names = [f"npgpt-{os.getpid()}-{i}" for i in range(n)]
    switch, limit = f"npgpt-{os.getpid()}-switch", ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
    try:
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "switch", "up", "type", "bridge")
        for i, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", f"port{i}", "netns", switch)
            run("ip", "-n", switch, "link", "set", f"port{i}", "up", "master", "switch")
            run("ip", "-n", name, "address", "add", f"10.0.0.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "route", "add", "default", "dev", "eth0")
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *limit)
            run("ip", "netns", "exec", switch, "tc", "qdisc", "add", "dev", f"port{i}", *limit)
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def run(*command):
    subprocess.run(command, env=os.environ | TCP, check=True, timeout=600)
