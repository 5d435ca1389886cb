#!/usr/bin/env python3
"""Writes the golden model with the real layer shapes (weights by an integer hash) as GGUF files.

usage: oracle_c.py GOLDEN_DIR OUT_DIR [--check]

GOLDEN_DIR holds config.json and tensors.json; OUT_DIR gets trunk.gguf and drafter.gguf (about 1.6 GB: matrices Q8_0,
small ones F16, experts MXFP4, all exact). --check only compares the first values and the sum of every tensor with
tensors.json."""
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gguf_out import (F16, F32, I32, MXFP4, Q8_0, Writer, drafter_metadata, gguf_name, pack_mxfp4, pack_q8,
                      trunk_metadata)

U = np.uint32
THREADS = min(16, os.cpu_count() or 2)
PIECE = 1 << 22  # elements made at a time
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
HALF = ("compressor", "indexer", "hc_", "gate.weight", "embed")  # kept in F16, as published files do


def mix(x):
    x ^= x >> U(16)
    x *= U(0x85ebca6b)
    x ^= x >> U(13)
    x *= U(0xc2b2ae35)
    x ^= x >> U(16)
    return x


def hash_of(seed, i):
    return mix(i * U(0x9e3779b1) + U(seed))


def span(at, n):
    return np.arange(at, at + n, dtype=np.uint64).astype(U)


def forced(t, at, n):
    """Mask of the forced elements of [at, at + n), and which are negative. at and n are multiples of 32."""
    g = hash_of(t["seed"] ^ 0x5bd1e995, span(at // 32, n // 32))
    lane = np.arange(32, dtype=U)
    return ((g & U(31))[:, None] == lane).ravel(), np.repeat((g & U(32)) == 0, 32)


def quad(h):
    q = np.zeros(h.shape, np.int32)
    for k in range(4):
        q += ((h >> U(8 * k)) & U(255)).astype(np.int32)
    return np.maximum(-127, (q - 510) >> 2)


def ints(t, at, n):
    """q of elements [at, at + n) of a q8 tensor, or codes of an fp4 one."""
    h = hash_of(t["seed"], span(at, n))
    mask, negative = forced(t, at, n)
    if t["kind"] == "q8":
        return np.where(mask, np.where(negative, -127, 127), quad(h)).astype(np.int8)
    return np.where(mask, np.where(negative, 15, 7), h >> U(28)).astype(np.uint8)


def enlarged(t, at, n):
    """1 or 4 per block of 32 elements: whole rows may be four times as large."""
    last = t["shape"][-1]
    if not t.get("rows"):
        return np.ones(n // 32, np.int32)
    row = (np.arange(at, at + n, 32, dtype=np.uint64) // np.uint64(last)).astype(U)
    return np.where(hash_of(t["seed"] ^ 0x2545f491, row) & U(7), 1, 4)


def small(t):
    """norm, scale, vec, ids: the whole tensor as float32 (ids: int32)."""
    n = int(np.prod(t["shape"]))
    h = hash_of(t["seed"], span(0, n))
    if t["kind"] == "norm":
        return ((t["base"] - 16 + (h >> U(27)).astype(np.int32)) / np.float32(64)).astype(np.float32)
    if t["kind"] == "scale":
        return ((32 + (h >> U(27)).astype(np.int32)) / np.float32(64)).astype(np.float32)
    if t["kind"] == "vec":
        return (quad(h) * np.float32(2.0 ** -t["k"]) + np.float32(t["base"])).astype(np.float32)
    tokens, used = t["shape"]
    first = hash_of(t["seed"], span(0, tokens)) % U(8)
    return (first[:, None] + np.arange(used, dtype=U)).astype(np.int32).ravel() % 8


def values(t, at, n):
    """float32 values of elements [at, at + n) of a big tensor."""
    q = ints(t, at, n)
    v = q.astype(np.float32) if t["kind"] == "q8" else E2M1[q]
    return v * (np.float32(2.0 ** -t["k"]) * np.repeat(enlarged(t, at, n), 32)).astype(np.float32)


def encoded(t, kind, at, n):
    if kind == Q8_0:
        d = (np.float32(2.0 ** -t["k"]) * enlarged(t, at, n)).astype(np.float16)
        return pack_q8(d, ints(t, at, n).reshape(-1, 32))
    if kind == MXFP4:
        e = 127 - t["k"] + np.where(enlarged(t, at, n) == 4, 2, 0)
        return pack_mxfp4(e.astype(np.uint8), ints(t, at, n).reshape(-1, 32))
    return values(t, at, n).astype("<f2").tobytes()


def kind_of(t):
    if t["kind"] == "fp4":
        return MXFP4
    if t["kind"] == "ids":
        return I32
    if t["kind"] != "q8":
        return F32
    return F16 if any(w in t["name"] for w in HALF) else Q8_0


def pieces(tensors, pool):
    """Bytes of one GGUF tensor (several official ones for experts), made ahead by the pool's threads."""
    jobs = []
    for t in tensors:
        kind, n = kind_of(t), int(np.prod(t["shape"]))
        if t["kind"] in ("q8", "fp4"):
            jobs += [(t, kind, at, min(PIECE, n - at)) for at in range(0, n, PIECE)]
        else:
            a = small(t)
            yield (a.astype("<f4") if kind == F32 else a.astype("<i4")).tobytes()
    for k in range(0, len(jobs), 2 * THREADS):
        yield from pool.map(lambda j: encoded(*j), jobs[k:k + 2 * THREADS])


def check(tensors):
    for t in tensors:
        n = int(np.prod(t["shape"]))
        if t["kind"] in ("q8", "fp4"):
            total = sum(float(values(t, at, min(PIECE, n - at)).sum(dtype=np.float64)) for at in range(0, n, PIECE))
            first = values(t, 0, 32)[:6]
        else:
            total, first = float(small(t).sum(dtype=np.float64)), small(t)[:6]
        want = np.array(t["first"], first.dtype)[:len(first)]
        good = abs(total - t["sum"]) < 1e-6 and np.array_equal(first, want)
        if not good:
            sys.exit(f"{t['name']}: sum {total}, expected {t['sum']}; first {first}, expected {t['first']}")
    print(f"{len(tensors)} tensors equal tensors.json")


def main():
    golden, out = sys.argv[1:3]
    tensors = json.load(open(os.path.join(golden, "tensors.json")))
    config = json.load(open(os.path.join(golden, "config.json")))
    if "--check" in sys.argv:
        return check(tensors)
    with ThreadPoolExecutor(THREADS) as pool:
        for drafter in (False, True):
            w, groups = Writer(), {}
            (drafter_metadata if drafter else trunk_metadata)(w, config)
            for t in tensors:
                if t["name"].startswith("mtp.") == drafter:
                    name, expert = gguf_name(t["name"])
                    groups.setdefault(name, []).append((expert or 0, t))
            for name, parts in groups.items():
                ts = [t for _, t in sorted(parts, key=lambda p: p[0])]
                shape = ts[0]["shape"] if len(ts) == 1 else [len(ts)] + ts[0]["shape"]
                w.tensor(name, kind_of(ts[0]), shape, lambda ts=ts: pieces(ts, pool))
            w.write(os.path.join(out, "drafter.gguf" if drafter else "trunk.gguf"))


main()
