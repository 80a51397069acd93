"""Devices, and parameters that stay on them between steps."""

import ctypes
import math
import re

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from npgpt.checks import require
from npgpt.engine.xla import INSTALL
from npgpt.errors import UserError, one_line
from npgpt.model.parameters import Parameters


def find_devices(name):
    """Return the devices of "cpu", "gpu", "cuda", "tpu", "gpu:N" or "auto". Raises UserError if there are none."""
    require("device", name, re.fullmatch(r"auto|cpu|tpu|(gpu|cuda)(:[0-9]{1,4})?", name),
            '"cpu", "gpu", "gpu:N" (or "cuda", "cuda:N"), "tpu" or "auto"')
    kind, _, number = name.partition(":")
    try:
        devices = jax.devices(None if kind == "auto" else kind.replace("cuda", "gpu"))
    except (RuntimeError, AssertionError) as error:     # the latter is empty: JAX_PLATFORMS names what JAX lacks
        why = one_line(error, 200) or f"JAX_PLATFORMS is {jax.config.jax_platforms}"
        raise UserError(f"JAX finds no {kind.replace('auto', 'device')} ({why}): {INSTALL}") from None
    if number and int(number) >= len(devices):
        raise UserError(f"there is no GPU {number}: the {len(devices)} here are numbered from 0")
    return [devices[int(number)]] if number else devices


def free_memory(device):
    """Return the bytes of a GPU that no program has taken, which JAX cannot tell; infinity without NVIDIA's driver."""
    try:
        cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.byref
    except OSError:
        return math.inf
    gpu, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    failed = (cuda.cuInit(0) or cuda.cuDeviceGet(at(gpu), device.local_hardware_id)     # JAX has the driver's numbers
              or cuda.cuDevicePrimaryCtxRetain(at(context), gpu) or cuda.cuCtxPushCurrent_v2(context)
              or cuda.cuMemGetInfo_v2(at(free), at(total))
              or cuda.cuCtxPopCurrent_v2(at(context)) or cuda.cuDevicePrimaryCtxRelease_v2(gpu))
    return math.inf if failed else free.value


def available_memory(device, arguments):
    """Return the bytes that a program can have. arguments: those of its arguments, which are on the device already."""
    stats = device.memory_stats() or {}             # some plugins and allocators have none
    in_use = stats.get("bytes_in_use", arguments)   # by this process, of the "pool_bytes" that JAX has taken
    most = min(stats.get("bytes_limit", math.inf), free_memory(device) + stats.get("pool_bytes", in_use))
    return most - max(in_use - arguments, 0)


class Devices:
    """The devices that a model runs on, among which a batch is divided, and how arrays are copied to them."""

    def __init__(self, devices):
        self.mesh, self.n, self.first = Mesh(np.array(devices), ("batch",)), len(devices), devices[0]


    def put(self, array, *axes):
        """Copy an array from the host to the devices; axes: "batch" for a divided axis, by default none."""
        sharding = NamedSharding(self.mesh, PartitionSpec(*axes))
        with jax.enable_x64(array.dtype == np.float64):
            return jax.device_put(array, sharding)




class DeviceParameters(Parameters):
    """Parameters that stay on the device after a step.

    Any access copies all of them to the host until the next step, so that writes count. An array from before that step
    gets the new values at the next access; until then, writes to it are lost.
    """

    def __init__(self, config, dtype, devices, frozen=(), moment=False):
        super().__init__(config, dtype, np, frozen, moment)
        self.devices = devices
        self.there = None           # name -> array on the device, if the values are there


    def axes(self, name):
        """Return how a moment of AdamW is divided: by its first axis if possible."""
        return ("batch",) if self.moment and self.shapes[name][0] % self.devices.n == 0 else ()

    def on_device(self):
        """Return the arrays on the device: those of the last step, or copies of the host's."""
        if self.there is not None:
            return self.there
        return {name: self.devices.put(self._views[name].copy(), *self.axes(name)) for name in self.shapes}

    def replace(self, there):
        self.there = there

    def _fetch(self):
        if self.there is not None:
            for name, there in self.there.items():
                self._views[name][...] = there
            self.there = None

    @property
    def flat(self):
        self._fetch()
        return self._flat

    @property
    def tree(self):
        self._fetch()
        return self._tree

    def __getitem__(self, name):
        self._fetch()
        return self._views[name]
