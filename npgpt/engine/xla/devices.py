"""Devices, and parameters that stay on them between steps."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from npgpt.devices import check_device, number_of
from npgpt.engine.xla import INSTALL
from npgpt.errors import UserError, one_line
from npgpt.model.parameters import Parameters


def devices_of(name):
    """Return all `Devices` of a kind, "cpu" or "gpu", or the one of "gpu:N".

    Raises UserError if there are none.
    """
    check_device(name)
    kind, number = "cpu" if name == "cpu" else "gpu", number_of(name)
    try:
        devices = jax.devices(kind)
    except (RuntimeError, AssertionError) as error:
        # An AssertionError is empty: JAX_PLATFORMS names what JAX lacks.
        why = one_line(error, 200) or f"JAX_PLATFORMS is {jax.config.jax_platforms}"
        raise UserError(f"JAX finds no {kind} ({why}): {INSTALL}") from None
    if number is None:
        return Devices(devices)
    if number >= len(devices):
        raise UserError(f"there is no GPU {number}: the {len(devices)} here are numbered from 0")
    return Devices([devices[number]])


class Devices:
    """The devices that a model runs on, among which a batch is divided, and how arrays are copied
    to them.
    """

    def __init__(self, devices):
        self.mesh, self.n = Mesh(np.array(devices), ("batch",)), len(devices)
        self.first = next(each for each in devices if each.process_index == jax.process_index())

    def put(self, array, *axes):
        """Copy an array from the host to the devices; axes: "batch" for a divided axis, by default
        none.
        """
        with jax.enable_x64(array.dtype == np.float64), jax.transfer_guard("allow"):
            sharding = self.sharding(*axes)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    def sharding(self, *axes):
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def divided(self, shape):
        """Return the axes of a gradient or a moment: the first, if one process has all parts."""
        return ["batch"] * (jax.process_count() == 1 and shape[0] % self.n == 0)


class DeviceParameters(Parameters):
    """Parameters that stay on the device after a step.

    Any access copies all of them to the host until the next step, so that writes count. An array
    from before that step gets the new values at the next access; until then, writes to it are lost.
    """

    def __init__(self, config, dtype, devices, frozen=(), moment=False):
        super().__init__(config, dtype, np, frozen, moment)
        self.devices, self.beside = devices, 0  # bytes on the devices: of AdamW's moments
        self.there = None  # name -> array on the device, if the values are there

    def on_device(self):
        """Return the arrays on the device: those of the last step, or copies of the host's."""
        if self.there is not None:
            return self.there
        axes = {
            name: self.devices.divided(shape) if self.moment else []
            for name, shape in self.shapes.items()
        }
        return {name: self.devices.put(self._views[name].copy(), *axes[name]) for name in axes}

    def zeros_like(self):
        self.beside = 2 * self.n_trained * self.dtype.itemsize
        return DeviceParameters(self.config, self.dtype, self.devices, self.frozen, moment=True)

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
