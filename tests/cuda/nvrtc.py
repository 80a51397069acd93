"""NVIDIA's compiler as a library, through ctypes: it needs no GPU, and nothing but the wheel nvidia-cuda-nvrtc."""

import ctypes
import importlib.util
from pathlib import Path

import pytest


class Nvrtc:
    """compile(text, options) -> machine code (or "PTX", which is text), log."""

    def __init__(self):
        spec = importlib.util.find_spec("nvidia")
        found = [path for folder in (spec.submodule_search_locations if spec else ())
                 for path in sorted(Path(folder).rglob("libnvrtc.so.*"))]
        if not found:
            pytest.skip("no wheel nvidia-cuda-nvrtc: pip install npgpt[test]")
        # The newest; its name ends with the major version. The builtins beside it are found by the library itself.
        self._nvrtc = ctypes.CDLL(str(max(found, key=lambda path: int(path.suffix[1:]))))

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def compile(self, text, options, result="CUBIN"):
        """The machine code of a program, an ELF file, and what the compiler has to say. RuntimeError if it fails."""
        nvrtc, program = self._nvrtc, ctypes.c_void_p()
        self._check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"npgpt.cu", 0, None, None))
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
            log = self._get("ProgramLog", program).rstrip(b"\0").decode()
            if failed:
                raise RuntimeError(log)
            return self._get(result, program), log
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _get(self, what, program):
        size = ctypes.c_size_t()
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}")(program, data))
        return data.raw

    def _check(self, result):
        if result:
            self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(self._nvrtc.nvrtcGetErrorString(result).decode())
