#!/usr/bin/env python3
"""Compares a GGUF file as the public `gguf` package reads it with values decoded by ds4.

usage: gguf_check.py FILE.gguf VALUES.f32
VALUES holds the float32 values of all float tensors, in directory order, as ds4's own decoder yields them.
Exit status: 0 equal, 1 different, 77 the package is not installed.
"""
import sys

try:
    import numpy as np
    from gguf import GGUFReader, GGMLQuantizationType as T
    from gguf.quants import dequantize
except ImportError:
    print("skipped (no gguf package)")
    sys.exit(77)


def main():
    reader = GGUFReader(sys.argv[1])
    ours = np.fromfile(sys.argv[2], dtype="<f4")
    at = 0
    types = {}
    for t in reader.tensors:
        if t.tensor_type in (T.I32, T.I64):
            continue
        n = int(np.prod(t.shape))
        if t.tensor_type == T.F32:
            theirs = np.asarray(t.data, dtype=np.float32)
        else:
            theirs = dequantize(t.data, t.tensor_type)
        theirs = theirs.reshape(-1)
        mine = ours[at:at + n]
        at += n
        types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + 1
        if theirs.size != n or mine.size != n:
            sys.exit(f"{t.name}: {theirs.size} values in the file, {mine.size} of ours, expected {n}")
        # numpy may round the last bit of a two-term product differently from float32 code; nothing more is allowed
        worst = float(np.max(np.abs(theirs - mine) / (np.abs(theirs) + np.abs(mine).max() * 1e-6 + 1e-38)))
        if not worst <= 1e-5:
            sys.exit(f"{t.name} ({t.tensor_type.name}): values differ, worst relative difference {worst:g}")
    if at != ours.size:
        sys.exit(f"{ours.size - at} values of ours belong to no tensor")
    print("equal:", ", ".join(f"{k} x {v}" for k, v in sorted(types.items())))


main()
