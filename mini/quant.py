"""Two-bit fake quantisation of expert matrices in the published mix: gate and up as IQ2_XXS, down as Q2_K.

Every function takes [..., 256*n] weights and returns codes; `decode_*` gives the values back. Scales are such that a
searching quantiser can find the same codes again: the largest sub-block of a block always has the largest scale code.
"""

import numpy as np
import torch


def load_grid(path, device):
    return torch.from_numpy(np.fromfile(path, np.uint8).reshape(256, 8).astype(np.float32)).to(device)


def nearest(v, scale, grid):
    """Grid row nearest to v [N,4,8] at the scale [N] of its 32 numbers."""
    u = (v / scale[:, None, None]).flatten(0, 1)
    score = u @ grid.T - 0.5 * grid.square().sum(1)
    return score.argmax(1).view(-1, 4)


def encode_iq2(w, grid):
    """index, sign mask (bit i = element i negative, even count), scale code per 32, float16 d per 256."""
    b = w.detach().float().reshape(-1, 4, 8)
    neg = b < 0
    odd = neg.sum(-1) % 2 == 1
    weakest = torch.zeros_like(neg).scatter_(-1, b.abs().argmin(-1, keepdim=True), True)
    neg = neg ^ (weakest & odd.unsqueeze(-1))
    v = torch.where(neg, -b, b)
    scale = (v.abs().amax((1, 2)) / 43).clamp_min(1e-12) * 0.9
    for _ in range(2):
        g = grid[nearest(v, scale, grid)]
        scale = ((v * g).sum((1, 2)) / g.square().sum((1, 2))).clamp_min(1e-12)
    d = (scale.view(-1, 8).amax(1) * (8 / 31)).half().float().clamp_min(6e-8)
    code = ((scale.view(-1, 8) * 8 / d[:, None] - 1) / 2).round().clamp(0, 15)
    final = (d[:, None] * (2 * code + 1) / 8).flatten()
    bits = (neg * (1 << torch.arange(8, device=w.device))).sum(-1)
    return nearest(v, final, grid).to(torch.uint8), bits.to(torch.uint8), code.to(torch.uint8), d.half()


def decode_iq2(index, bits, code, d, grid, shape):
    sign = 1 - 2 * ((bits.long().unsqueeze(-1) >> torch.arange(8, device=bits.device)) & 1).float()
    scale = (d.float()[:, None] * (2 * code.float() + 1) / 8).view(-1, 1, 1)
    return (grid[index.long()] * sign * scale).view(shape)


def encode_q2k(w):
    """q [N,16,16] in 0..3, scale and minimum codes [N,16], d and dmin [N]."""
    b = w.detach().float().reshape(-1, 16, 16)
    best = None
    for shrink in (1.0, 0.85, 0.7):
        low, high = (b.amin(-1) * shrink).clamp_max(0), b.amax(-1) * shrink
        sc = ((high - low) / 3).clamp_min(1e-9)
        q = ((b - low.unsqueeze(-1)) / sc.unsqueeze(-1)).round().clamp(0, 3)
        err = (q * sc.unsqueeze(-1) + low.unsqueeze(-1) - b).square().sum(-1)
        if best is None:
            best = [sc, -low, err]
        else:
            better = err < best[2]
            best = [torch.where(better, x, y) for x, y in zip((sc, -low, err), best)]
    d = (best[0].amax(1) / 15).half().float().clamp_min(6e-8)
    dmin = (best[1].amax(1) / 15).half().float().clamp_min(6e-8)
    sc = (best[0] / d[:, None]).round().clamp(1, 15)
    m = (best[1] / dmin[:, None]).round().clamp(0, 15)
    q = ((b + (dmin[:, None] * m).unsqueeze(-1)) / (d[:, None] * sc).unsqueeze(-1)).round().clamp(0, 3)
    return q.to(torch.uint8), sc.to(torch.uint8), m.to(torch.uint8), d.half(), dmin.half()


def decode_q2k(q, sc, m, d, dmin, shape):
    s, low = d.float()[:, None] * sc.float(), dmin.float()[:, None] * m.float()
    return (q.float() * s.unsqueeze(-1) - low.unsqueeze(-1)).view(shape)


class Straight(torch.autograd.Function):
    """Value of the second argument, gradient to the first."""

    @staticmethod
    def forward(ctx, w, q):
        return q

    @staticmethod
    def backward(ctx, g):
        return g, None


def fake(w, name, grid):
    if name.endswith(".w2"):
        return decode_q2k(*encode_q2k(w), w.shape)
    return decode_iq2(*encode_iq2(w, grid), grid, w.shape)


def quantised(p, grid, only=""):
    """The parameters with every expert matrix replaced by its quantised value (straight-through)."""
    out = dict(p)
    for k, w in p.items():
        if ".experts." in k and k.startswith(only):
            with torch.no_grad():
                q = fake(w, k, grid)
            out[k] = Straight.apply(w, q)
    return out


# ------------------------------------------------- transport: codes for experts, float16 for other matrices


def save_parts(p, grid, prefix, limit=14 << 20):
    """Writes PREFIX-0.npz, PREFIX-1.npz, ... each below `limit` bytes before compression."""
    parts, size = [{}], 0
    for k, w in p.items():
        w = w.detach()
        if ".experts." in k:
            enc = encode_q2k(w) if k.endswith(".w2") else encode_iq2(w, grid)
            arrays = {f"{k}|{i}": a.cpu().numpy() for i, a in enumerate(enc)}
            if k.endswith(".w2"):
                q = arrays[k + "|0"].reshape(-1, 4)
                arrays[k + "|0"] = q[:, 0] | q[:, 1] << 2 | q[:, 2] << 4 | q[:, 3] << 6
        elif k.endswith("tid2eid"):
            arrays = {k: w.cpu().numpy().astype(np.uint8)}
        else:
            arrays = {k: w.cpu().numpy().astype(np.float16 if w.dim() > 1 and min(w.shape) > 1 else np.float32)}
        n = sum(a.nbytes for a in arrays.values())
        if size + n > limit:
            parts.append({})
            size = 0
        parts[-1].update(arrays)
        size += n
    for i, a in enumerate(parts):
        np.savez_compressed(f"{prefix}-{i}.npz", **a)


def load_parts(files, grid, shapes):
    a = {}
    for f in files:
        a.update(np.load(f))
    t = {k: torch.from_numpy(np.asarray(v)) for k, v in a.items()}
    p = {}
    for k, s in shapes.items():
        if k + "|0" in t and k.endswith(".w2"):
            q = t[k + "|0"].unsqueeze(-1) >> torch.tensor([0, 2, 4, 6]) & 3
            p[k] = decode_q2k(q.view(-1, 16, 16), *(t[f"{k}|{i}"] for i in range(1, 5)), s)
        elif k + "|0" in t:
            p[k] = decode_iq2(*(t[f"{k}|{i}"] for i in range(4)), grid, s)
        elif k in t:
            p[k] = t[k].long() if k.endswith("tid2eid") else t[k].float()
    return p
