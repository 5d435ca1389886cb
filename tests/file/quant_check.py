#!/usr/bin/env python3
"""Compares decoded blocks with gguf.quants.dequantize.

usage: quant_check.py FILE
FILE: records of u32 type, u32 elements, u32 bytes, the blocks, the float32 values that ds4 decoded.
Exit status: 0 equal, 1 different, 77 the package gguf (or numpy) is not installed.
"""
import struct
import sys

try:
    import numpy as np
    import gguf
    from gguf import quants
except ImportError:
    sys.exit(77)


def check(kind, blocks, mine):
    try:
        qtype = gguf.GGMLQuantizationType(kind)
        theirs = quants.dequantize(np.frombuffer(blocks, dtype=np.uint8), qtype).reshape(-1)
    except (ValueError, NotImplementedError):
        print(f"type {kind}: this version of the package cannot decode it")
        return True
    if np.array_equal(theirs.astype(np.float32), mine):
        return True
    bad = np.flatnonzero(theirs != mine)
    at = bad[0]
    print(f"{qtype.name}: {len(bad)} of {len(mine)} values differ, first at {at}: {mine[at]!r}, gguf {theirs[at]!r}")
    return False


def main():
    data = open(sys.argv[1], "rb").read()
    at, good = 0, True
    while at < len(data):
        kind, n, size = struct.unpack_from("<III", data, at)
        at += 12
        mine = np.frombuffer(data, dtype="<f4", count=n, offset=at + size)
        good &= check(kind, data[at:at + size], mine)
        at += size + 4 * n
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
