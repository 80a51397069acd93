"""Devices, and parameters that stay on them between steps."""

import re

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from npgpt.checks import check, check_text
from npgpt.engine.xla import INSTALL
from npgpt.errors import UserError, one_line
from npgpt.model.parameters import Parameters


def find_devices(name):
    """Return the devices of "cpu", "gpu", "cuda", "tpu", "gpu:N" or "auto". Raises UserError if there are none."""
    check_text("device", name)
    check("device", name, re.fullmatch(r"auto|cpu|tpu|(gpu|cuda)(:[0-9]{1,4})?", name),
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


def connect():
    """Connect the processes of an MPI launcher and find the devices of all; all must call it at the same time."""
    jax.distributed.initialize(cluster_detection_method="mpi4py")
    find_devices("auto")


class Place:
    """Devices, and how arrays are copied to them."""

    def __init__(self, devices):
        self.mesh, self.n = Mesh(np.array(devices), ("batch",)), len(devices)
        self.own = next(each for each in devices if each.process_index == jax.process_index())

    def __reduce__(self):
        kind = self.own.platform if self.own.platform in ("cpu", "tpu") else "gpu"
        return place_of, (f"{kind}:{self.own.id}" if kind == "gpu" and self.n == 1 else kind,)

    def put(self, array, *axes):
        """Copy an array from the host to the devices; axes: "batch" for a divided axis, by default none."""
        sharding = NamedSharding(self.mesh, PartitionSpec(*axes))
        with jax.enable_x64(array.dtype == np.float64):
            if jax.process_count() > 1:
                return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
            return jax.device_put(array, sharding)


def place_of(name):
    """Return the `Place` of the devices of a name."""
    return Place(find_devices(name))


class DeviceParameters(Parameters):
    """Parameters that stay on the device after a step.

    Any access copies all of them to the host, where they stay until the next step, so writes to them count. An array
    from an earlier access gets the new values at the next access; until then, writes to it are lost.
    """

    def __init__(self, config, dtype, place, frozen=(), moment=False):
        super().__init__(config, dtype, np, frozen, moment)
        self.place = place
        self.there = None           # name -> array on the device, if the values are there

    def __reduce__(self):
        return type(self), (self.config, str(self.dtype), self.place, self.frozen, self.moment), self.flat

    def axes(self, name):
        """Return how a moment of AdamW is divided: by its first axis if possible, and if all parts can be fetched."""
        divided = self.moment and self.shapes[name][0] % self.place.n == 0 and jax.process_count() == 1
        return ("batch",) if divided else ()

    def on_device(self):
        """Return the arrays on the device: those of the last step, or copies of the host's."""
        if self.there is not None:
            return self.there
        return {name: self.place.put(self._views[name].copy(), *self.axes(name)) for name in self.shapes}

    def replace(self, there):
        """Replace all values by arrays on the device."""
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
