"""DeepSeek-V4-shaped language model and its DSpark drafter, as plain functions over a dict of tensors.

Parameter names are those of the official checkpoint, except that the routed experts of a layer are stacked
(`layers.N.ffn.experts.w1` is [experts, inner, hidden]); `to_hf` and `from_hf` translate. A batch row may hold
several documents: `doc` gives every token its document number (-1 = padding). Documents of 128 tokens or more
must start at a multiple of 128, shorter ones at a multiple of 4; then every document is computed exactly as if it
stood alone at position 0, because rotations are relative and compression windows line up.
"""

import json
import math
import os

import torch
import torch.nn.functional as F

FAST = torch.cuda.is_available()
if FAST:
    from sinkhorn import sinkhorn_gpu


class Config(dict):
    """config.json with attribute access."""

    __getattr__ = dict.__getitem__

    @staticmethod
    def load(path):
        return Config(json.load(open(path)))

    @property
    def stages(self):
        return len(self.compress_ratios) - self.num_hidden_layers


def maybe_compile(fn):
    return torch.compile(fn, dynamic=False) if FAST and os.environ.get("MINI_COMPILE", "1") == "1" else fn


# ---------------------------------------------------------------- parameters


def layer_shapes(c, prefix, ratio, hashed):
    d, hd, h, i, e = c.hidden_size, c.head_dim, c.num_attention_heads, c.moe_intermediate_size, c.n_routed_experts
    s = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
    for k in ("attn", "ffn"):
        s[f"hc_{k}_fn"], s[f"hc_{k}_base"], s[f"hc_{k}_scale"] = (24, 4 * d), (24,), (3,)
    a = {
        "wq_a.weight": (c.q_lora_rank, d),
        "q_norm.weight": (c.q_lora_rank,),
        "wq_b.weight": (h * hd, c.q_lora_rank),
        "wkv.weight": (hd, d),
        "kv_norm.weight": (hd,),
        "attn_sink": (h,),
        "wo_a.weight": (c.o_groups * c.o_lora_rank, h // c.o_groups * hd),
        "wo_b.weight": (d, c.o_groups * c.o_lora_rank),
    }
    if ratio:
        w = hd * (2 if ratio == 4 else 1)
        a |= {
            "compressor.wkv.weight": (w, d),
            "compressor.wgate.weight": (w, d),
            "compressor.ape": (ratio, w),
            "compressor.norm.weight": (hd,),
        }
    if ratio == 4:
        n, w = c.index_head_dim, 2 * c.index_head_dim
        a |= {
            "indexer.wq_b.weight": (c.index_n_heads * n, c.q_lora_rank),
            "indexer.weights_proj.weight": (c.index_n_heads, d),
            "indexer.compressor.wkv.weight": (w, d),
            "indexer.compressor.wgate.weight": (w, d),
            "indexer.compressor.ape": (4, w),
            "indexer.compressor.norm.weight": (n,),
        }
    s |= {f"attn.{k}": v for k, v in a.items()}
    s |= {
        "ffn.gate.weight": (e, d),
        "ffn.experts.w1": (e, i, d),
        "ffn.experts.w3": (e, i, d),
        "ffn.experts.w2": (e, d, i),
        "ffn.shared_experts.w1.weight": (i, d),
        "ffn.shared_experts.w3.weight": (i, d),
        "ffn.shared_experts.w2.weight": (d, i),
    }
    if hashed:
        s["ffn.gate.tid2eid"] = (c.vocab_size, c.num_experts_per_tok)
    else:
        s["ffn.gate.bias"] = (e,)
    return {prefix + k: v for k, v in s.items()}


def trunk_shapes(c):
    d, v = c.hidden_size, c.vocab_size
    s = {
        "embed.weight": (v, d),
        "head.weight": (v, d),
        "norm.weight": (d,),
        "hc_head_fn": (4, 4 * d),
        "hc_head_base": (4,),
        "hc_head_scale": (1,),
    }
    for n in range(c.num_hidden_layers):
        s |= layer_shapes(c, f"layers.{n}.", c.compress_ratios[n], n < c.num_hash_layers)
    return s


def drafter_shapes(c):
    d, v, r, last = c.hidden_size, c.vocab_size, c.dspark_markov_rank, f"mtp.{c.stages - 1}."
    s = {"mtp.0.main_proj.weight": (d, d * len(c.dspark_target_layer_ids)), "mtp.0.main_norm.weight": (d,)}
    for n in range(c.stages):
        s |= layer_shapes(c, f"mtp.{n}.", 0, False)
    return s | {
        last + "norm.weight": (d,),
        last + "hc_head_fn": (4, 4 * d),
        last + "hc_head_base": (4,),
        last + "hc_head_scale": (1,),
        last + "markov_head.markov_w1.weight": (v, r),
        last + "markov_head.markov_w2.weight": (v, r),
        last + "confidence_head.proj.weight": (1, d + r),
    }


def init(shapes, seed=0, device="cpu"):
    """Fresh float32 parameters. Every hyper-connection starts near 'read one stream, write all, keep all'."""
    g = torch.Generator().manual_seed(seed)
    p, hc = {}, 0
    for name, s in shapes.items():
        if name.endswith("tid2eid"):
            experts = shapes[name.replace("gate.tid2eid", "experts.w1")][0]
            t = torch.stack([torch.randperm(experts, generator=g)[: s[1]] for _ in range(s[0])])
        elif name.endswith("norm.weight"):
            t = torch.ones(s)
        elif name.endswith(("attn_sink", "gate.bias")):
            t = torch.zeros(s)
        elif name.endswith(("attn_scale", "ffn_scale", "head_scale")):
            t = torch.ones(s)
        elif name.endswith(("attn_base", "ffn_base")):
            t = torch.cat(
                [torch.full((4,), -2.0), torch.randn(4, generator=g) * 0.3, (5 * torch.eye(4) - 1).flatten()]
            )
            t[hc // 2 % 4] = 1.0
            hc += 1
        elif name.endswith("head_base"):
            t = torch.full(s, -1.1)
        else:
            t = torch.randn(s, generator=g)
            if name.startswith("embed"):
                t *= 0.4
            elif name.endswith(("_fn", "ape", "confidence_head.proj.weight", "head.weight", "markov_w2.weight")):
                t *= 0.01
            elif name.endswith("markov_w1.weight"):
                t *= 0.3
            else:
                t *= (0.5 if "wo_b" in name or ".w2" in name else 1.0) / math.sqrt(s[-1])
        p[name] = t.to(device)
    return p


def to_hf(p):
    """Official names: one matrix per expert."""
    out = {}
    for k, v in p.items():
        if ".experts." in k:
            pre, w = k.rsplit(".", 1)
            out |= {f"{pre}.{e}.{w}.weight": v[e].contiguous() for e in range(v.shape[0])}
        else:
            out[k] = v
    return out


def from_hf(t, c):
    p = {}
    for name in trunk_shapes(c) | (drafter_shapes(c) if c.stages else {}):
        if ".experts." in name:
            pre, w = name.rsplit(".", 1)
            p[name] = torch.stack([t[f"{pre}.{e}.{w}.weight"].float() for e in range(c.n_routed_experts)])
        elif name in t:
            p[name] = t[name].long() if name.endswith("tid2eid") else t[name].float()
    return p


def sub(p, prefix):
    n = len(prefix)
    return {k[n:]: v for k, v in p.items() if k.startswith(prefix)}


# ---------------------------------------------------------------- small pieces


def rms(x, w=None, eps=1e-6):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if w is None else y * w).to(x.dtype)


def linear(x, w):
    return F.linear(x, w.to(x.dtype))


def pow2_ceil(a):
    """2^ceil(log2(a)) for positive normal floats, exact, from the bits."""
    bits = a.view(torch.int32)
    e = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (e << 23).view(torch.float32)


def fp8_sim(x):
    """KV rounding: e4m3 per 64 numbers on everything but the rotary tail; straight-through gradient."""
    v = x[..., :-64].detach().float().unflatten(-1, (-1, 64))
    s = pow2_ceil(v.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448))
    q = ((v / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s).flatten(-2).to(x.dtype)
    return torch.cat([x[..., :-64] + (q - x[..., :-64]).detach(), x[..., -64:]], -1)


def fp4_sim(x):
    """Index rounding: e2m1 per 32 numbers, ties to the even code; straight-through gradient."""
    v = x.detach().float().unflatten(-1, (-1, 32))
    s = pow2_ceil(v.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / 6))
    a = (v / s).abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    q = (torch.round(a / step) * step).clamp_max(6.0) * torch.sign(v) * s
    return x + (q.flatten(-2).to(x.dtype) - x).detach()


def rope_table(c, length, compressed, device):
    """cos and sin [length, 32] in float32."""
    i = torch.arange(0, 64, 2, dtype=torch.float32, device=device)
    f = 1.0 / ((c.compress_rope_theta if compressed else c.rope_theta) ** (i / 64))
    if compressed:
        y = c.rope_scaling
        idx = (
            lambda n: 64
            * math.log(y["original_max_position_embeddings"] / (n * 2 * math.pi))
            / (2 * math.log(c.compress_rope_theta))
        )
        lo, hi = max(math.floor(idx(y["beta_fast"])), 0), min(math.ceil(idx(y["beta_slow"])), 63)
        ramp = ((torch.arange(32, dtype=torch.float32, device=device) - lo) / (hi - lo)).clamp(0, 1)
        f = f / y["factor"] * ramp + f * (1 - ramp)
    a = torch.arange(length, dtype=torch.float32, device=device)[:, None] * f
    return a.cos(), a.sin()


def rope(x, cos, sin, inverse=False):
    """Rotates adjacent pairs of the last 64 numbers; cos and sin broadcast against x's leading dimensions."""
    t = x[..., -64:].float().unflatten(-1, (32, 2))
    if inverse:
        sin = -sin
    a, b = t[..., 0], t[..., 1]
    t = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-64], t.to(x.dtype)], -1)


def hadamard(device, dtype, n=128):
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h * n**-0.5).to(device, dtype)


# ---------------------------------------------------------------- hyper-connections


def sinkhorn_cpu(m, iters, eps):
    m = m / (m.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        m = m / (m.sum(-1, keepdim=True) + eps)
        m = m / (m.sum(-2, keepdim=True) + eps)
    return m


def sinkhorn(m, iters, eps):
    return sinkhorn_gpu(m, iters, eps) if m.is_cuda else sinkhorn_cpu(m, iters, eps)


@maybe_compile
def hc_mix(X, fn, scale, base, norm, eps, hc_eps):
    """Streams [B,T,4,D] -> normed input [B,T,D], write weights [B,T,4], row-softmaxed mixing matrix [B,T,4,4]."""
    r = torch.rsqrt(X.flatten(-2).float().square().mean(-1, keepdim=True) + eps)
    m = linear(X.flatten(-2), fn).float() * r
    pre = torch.sigmoid(m[..., :4] * scale[0] + base[:4]) + hc_eps
    post = 2 * torch.sigmoid(m[..., 4:8] * scale[1] + base[4:8])
    comb = (m[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4)).softmax(-1) + hc_eps
    y = (pre.unsqueeze(-1) * X.float()).sum(-2)
    return rms(y.to(X.dtype), norm, eps), post, comb


@maybe_compile
def hc_post(out, X, post, comb):
    y = post.unsqueeze(-1) * out.float().unsqueeze(-2)
    for j in range(4):
        y = y + comb[..., j, :].unsqueeze(-1) * X[..., j, :].float().unsqueeze(-2)
    return y.to(X.dtype)


@maybe_compile
def hc_head(X, fn, scale, base, eps, hc_eps):
    r = torch.rsqrt(X.flatten(-2).float().square().mean(-1, keepdim=True) + eps)
    w = torch.sigmoid(linear(X.flatten(-2), fn).float() * r * scale + base) + hc_eps
    return (w.unsqueeze(-1) * X.float()).sum(-2).to(X.dtype)


# ---------------------------------------------------------------- mixture of experts


def top_mask(s, k):
    """1 for the k largest of the last dimension (lower index wins ties), computed by counting."""
    n = s.shape[-1]
    i = torch.arange(n, device=s.device)
    a, b = s.unsqueeze(-1), s.unsqueeze(-2)
    beaten = (b > a) | ((b == a) & (i[None, :] < i[:, None]))
    return (beaten.sum(-1) < k).float()


@maybe_compile
def moe(x, gate, bias, table, ids, w1, w3, w2, s1, s3, s2, k, scaling, limit):
    """All experts are evaluated; those not chosen get weight 0. Returns output and the choice mask [B,T,E]."""
    p = torch.sqrt(F.softplus(linear(x, gate).float()).clamp_min(1e-12))
    chosen = table[ids] if table is not None else top_mask((p + bias).detach(), k)
    w = p * chosen
    w = scaling * w / w.sum(-1, keepdim=True)
    w = torch.cat([w, torch.ones_like(w[..., :1])], -1)
    e, i, d = w1.shape
    g = linear(x, torch.cat([w1.flatten(0, 1), s1])).float().clamp_max(limit)
    u = linear(x, torch.cat([w3.flatten(0, 1), s3])).float().clamp(-limit, limit)
    h = (F.silu(g) * u).unflatten(-1, (e + 1, i)) * w.unsqueeze(-1)
    return linear(h.flatten(-2).to(x.dtype), torch.cat([w2.transpose(0, 1).flatten(1), s2], 1)), chosen


# ---------------------------------------------------------------- attention


def compress(x, wkv, wgate, ape, norm, ratio, same_prev, eps):
    """Compressed rows [B, T/ratio, D] before rotation. same_prev [B,S]: the previous window is of the same document."""
    kv = linear(x, wkv).float().unflatten(1, (-1, ratio))
    sc = linear(x, wgate).float().unflatten(1, (-1, ratio)) + ape
    if ratio == 4:
        d = kv.shape[-1] // 2
        shift = lambda t: F.pad(t, (0, 0, 0, 0, 1, 0))[:, :-1]
        prev = shift(sc[..., :d]).masked_fill(~same_prev[:, :, None, None], -1e30)
        kv = torch.cat([shift(kv[..., :d]), kv[..., d:]], 2)
        sc = torch.cat([prev, sc[..., d:]], 2)
    return rms((sc.softmax(2) * kv).sum(2).to(x.dtype), norm, eps)


def softmax_parts(zs, sink):
    """Joint softmax over several score tensors and one sink logit per head (no value)."""
    m = sink
    for z in zs:
        m = torch.maximum(m, z.amax(-1, keepdim=True))
    m = m.detach()
    es = [torch.exp(z - m) for z in zs]
    den = torch.exp(sink - m)
    for e in es:
        den = den + e.sum(-1, keepdim=True)
    return [e / den for e in es]


def project_q(x, a, cos, sin, heads, eps):
    qr = rms(linear(x, a["wq_a.weight"]), a["q_norm.weight"], eps)
    q = rms(linear(qr, a["wq_b.weight"]).unflatten(-1, (heads, -1)), None, eps)
    return qr, rope(q, cos.unsqueeze(-2), sin.unsqueeze(-2))


def project_kv(x, a, cos, sin, sim, eps):
    kv = rope(rms(linear(x, a["wkv.weight"]), a["kv_norm.weight"], eps), cos, sin)
    return fp8_sim(kv) if sim else kv


def project_out(o, a, cos, sin, groups):
    o = rope(o, cos.unsqueeze(-2), sin.unsqueeze(-2), inverse=True)
    o = o.flatten(-2).unflatten(-1, (groups, -1))
    low = torch.einsum("btgi,goi->btgo", o, a["wo_a.weight"].to(o.dtype).unflatten(0, (groups, -1)))
    return linear(low.flatten(-2), a["wo_b.weight"])


def local_keys(kv):
    """[B,T,D] -> [B,T/128,256,D]: the previous and the own block of 128 rows."""
    k = kv.unflatten(1, (-1, 128))
    return torch.cat([F.pad(k, (0, 0, 0, 0, 1, 0))[:, :-1], k], 2)


def local_docs(doc):
    d = doc.unflatten(1, (-1, 128))
    return torch.cat([F.pad(d, (0, 0, 1, 0), value=-2)[:, :-1], d], 2)


@maybe_compile
def attention(x, a, doc, cos, sin, had, ratio, heads, groups, topk, sim, eps):
    """One trunk attention. T must be a multiple of 128. Returns [B,T,D] and the indexer's training loss."""
    B, T, _ = x.shape
    scale = a["wkv.weight"].shape[0] ** -0.5
    qr, q = project_q(x, a, cos, sin, heads, eps)
    kv = project_kv(x, a, cos, sin, sim >= 1, eps)
    keys = local_keys(kv)
    i, j = torch.arange(128, device=x.device)[:, None], torch.arange(256, device=x.device)[None]
    ok = (j > i) & (j <= i + 128) & (doc.unflatten(1, (-1, 128)).unsqueeze(-1) == local_docs(doc).unsqueeze(2))
    z = (q.unflatten(1, (-1, 128)).flatten(2, 3) @ keys.transpose(-1, -2)).float() * scale
    z = z.unflatten(2, (128, heads)).masked_fill(~ok.unsqueeze(3), -1e30).flatten(1, 2)
    sink = a["attn_sink"].unsqueeze(-1)
    loss = x.new_zeros((), dtype=torch.float32)
    if not ratio:
        (pl,) = softmax_parts([z], sink)
    else:
        wdoc, S = doc[:, ::ratio], T // ratio
        same_prev = wdoc == F.pad(wdoc, (1, 0), value=-2)[:, :-1]
        ccos, csin = cos[::ratio], sin[::ratio]
        comp = lambda pre, inp: rope(
            compress(
                inp,
                a[pre + "wkv.weight"],
                a[pre + "wgate.weight"],
                a[pre + "ape"],
                a[pre + "norm.weight"],
                ratio,
                same_prev,
                eps,
            ),
            ccos,
            csin,
        )
        rows = comp("compressor.", x)
        rows = fp8_sim(rows) if sim >= 1 else rows
        s = torch.arange(S, device=x.device)
        visible = (s < ((torch.arange(T, device=x.device) + 1) // ratio)[:, None]) & (
            wdoc[:, None] == doc[:, :, None]
        )
        allowed = visible
        if ratio == 4 and S > topk:
            qi = linear(qr.detach(), a["indexer.wq_b.weight"]).unflatten(-1, (-1, 128))
            qi = rope(qi, cos.unsqueeze(-2), sin.unsqueeze(-2)) @ had
            ki = comp("indexer.compressor.", x.detach()) @ had
            if sim >= 2:
                qi, ki = fp4_sim(qi), fp4_sim(ki)
            wi = linear(x.detach(), a["indexer.weights_proj.weight"]).float() * (128 * qi.shape[2]) ** -0.5
            dots = (qi.flatten(1, 2) @ ki.transpose(-1, -2)).unflatten(1, (T, -1)).float()
            score = (wi.unsqueeze(-1) * F.relu(dots)).sum(2).masked_fill(~visible, -1e30)
            kth = torch.topk(score.detach(), topk, dim=-1).values[..., -1:]
            allowed = visible & (score.detach() >= kth)
        zc = (q.flatten(1, 2) @ rows.transpose(-1, -2)).unflatten(1, (T, heads)).float() * scale
        pl, pc = softmax_parts([z, zc.masked_fill(~allowed.unsqueeze(2), -1e30)], sink)
        if ratio == 4 and S > topk and torch.is_grad_enabled():
            full = torch.where(visible, zc.detach().logsumexp(2), -1e30)
            target = full.softmax(-1)
            many = (visible.sum(-1) > topk).float()
            kl = (target * (target.clamp_min(1e-9).log() - score.log_softmax(-1))).sum(-1)
            loss = (kl * many).sum() / many.sum().clamp_min(1)
    o = (pl.to(x.dtype).unflatten(1, (-1, 128)).flatten(2, 3) @ keys).unflatten(2, (128, heads)).flatten(1, 2)
    if ratio:
        o = o + (pc.to(x.dtype).flatten(1, 2) @ rows).unflatten(1, (T, heads))
    return project_out(o, a, cos, sin, groups), loss


# ---------------------------------------------------------------- trunk


class Context:
    """Constants of one length: rotation tables, Hadamard matrix, simulated roundings (0 none, 1 KV, 2 all)."""

    def __init__(self, c, length, device, dtype, sim=2):
        self.c, self.sim, self.dtype, self.length = c, sim, dtype, length
        self.plain = rope_table(c, length, False, device)
        self.yarn = rope_table(c, length, True, device)
        self.had = hadamard(device, dtype)


def expert_table(p, layer, c):
    """Hash layers: [V,E] 0/1 table of the experts of every token."""
    t = p[f"layers.{layer}.ffn.gate.tid2eid"]
    return torch.zeros(t.shape[0], c.n_routed_experts, device=t.device).scatter_(1, t, 1.0)


def ffn(x, L, c, table, ids):
    return moe(
        x,
        L["ffn.gate.weight"],
        L.get("ffn.gate.bias"),
        table,
        ids,
        L["ffn.experts.w1"],
        L["ffn.experts.w3"],
        L["ffn.experts.w2"],
        L["ffn.shared_experts.w1.weight"],
        L["ffn.shared_experts.w3.weight"],
        L["ffn.shared_experts.w2.weight"],
        c.num_experts_per_tok,
        c.routed_scaling_factor,
        c.swiglu_limit,
    )


def sublayer(X, L, kind, c, fn):
    """One hyper-connected half of a layer."""
    x, post, comb = hc_mix(
        X,
        L[f"hc_{kind}_fn"],
        L[f"hc_{kind}_scale"],
        L[f"hc_{kind}_base"],
        L[f"{kind}_norm.weight"],
        c.rms_norm_eps,
        c.hc_eps,
    )
    out, extra = fn(x)
    return hc_post(out, X, post, sinkhorn(comb, c.hc_sinkhorn_iters, c.hc_eps)), extra


def trunk(p, ids, doc, ctx):
    """Streams after the last layer, tap features [B,T,3D], expert choice masks per layer, indexer loss."""
    c = ctx.c
    X = F.embedding(ids, p["embed.weight"]).to(ctx.dtype).unsqueeze(2).expand(-1, -1, 4, -1).contiguous()
    taps, loads, index_loss = [], [], 0.0
    for n in range(c.num_hidden_layers):
        L, ratio = sub(p, f"layers.{n}."), c.compress_ratios[n]
        cos, sin = ctx.yarn if ratio else ctx.plain
        table = p.get(f"table.{n}")
        if table is None and n < c.num_hash_layers:
            table = expert_table(p, n, c)
        X, loss = sublayer(
            X,
            L,
            "attn",
            c,
            lambda x: attention(
                x,
                sub(L, "attn."),
                doc,
                cos,
                sin,
                ctx.had,
                ratio,
                c.num_attention_heads,
                c.o_groups,
                c.index_topk,
                ctx.sim,
                c.rms_norm_eps,
            ),
        )
        X, load = sublayer(X, L, "ffn", c, lambda x: ffn(x, L, c, table, ids))
        index_loss = index_loss + loss
        loads.append(load)
        if n in c.dspark_target_layer_ids:
            taps.append(X.float().mean(2).to(X.dtype))
    return X, torch.cat(taps, -1), loads, index_loss


def head(p, X, c):
    y = hc_head(X, p["hc_head_fn"], p["hc_head_scale"], p["hc_head_base"], c.rms_norm_eps, c.hc_eps)
    return linear(rms(y, p["norm.weight"], c.rms_norm_eps), p["head.weight"])


def pad_to_block(ids, doc):
    n = -ids.shape[1] % 128
    return F.pad(ids, (0, n), value=2), F.pad(doc, (0, n), value=-1)


# ---------------------------------------------------------------- drafter


@maybe_compile
def draft_attention(x, rows, a, anchors, doc, cos, sin, heads, groups, block, sim, eps):
    """x [B,R,D] with R = blocks*anchors*block rows; rows [B,T,hd] context rows; anchors [B,nb,A] absolute positions.

    Every row of a draft block sees the (up to) 128 context rows before its anchor and the whole block."""
    B, nb, A = anchors.shape
    scale = a["wkv.weight"].shape[0] ** -0.5
    _, q = project_q(x, a, cos, sin, heads, eps)
    own = project_kv(x, a, cos, sin, sim, eps).unflatten(1, (nb, A, block))
    keys = local_keys(rows)
    q = q.unflatten(1, (nb, A, block))
    qf = q.flatten(2, 4)
    pos = (torch.arange(nb, device=x.device)[:, None] - 1) * 128 + torch.arange(256, device=x.device)
    adoc = torch.gather(doc, 1, anchors.flatten(1)).unflatten(1, (nb, A))
    an, kp = anchors.unsqueeze(-1), pos[None, :, None]
    ok = (kp < an) & (kp >= an - 128) & (local_docs(doc).unsqueeze(2) == adoc.unsqueeze(-1))
    z = (qf @ keys.transpose(-1, -2)).float().unflatten(2, (A, block, heads)) * scale
    z = z.masked_fill(~ok[:, :, :, None, None], -1e30)
    zo = torch.einsum("bnaqhd,bnakd->bnaqhk", q, own).float() * scale
    pl, po = softmax_parts([z, zo], a["attn_sink"].unsqueeze(-1))
    o = (pl.to(x.dtype).flatten(2, 4) @ keys).unflatten(2, (A, block, heads))
    o = o + torch.einsum("bnaqhk,bnakd->bnaqhd", po.to(x.dtype), own)
    return project_out(o.flatten(1, 3), a, cos, sin, groups)


def drafter(p, taps, ids, doc, anchors, ctx):
    """anchors [B,T/128,A]: positions (inside their block of 128) of already chosen tokens; drafts continue after them.

    Returns hidden rows [B, nb*A, block, D] before the final norm and base logits of the same rows."""
    c, blk = ctx.c, ctx.c.dspark_block_size
    main = rms(linear(taps, p["mtp.0.main_proj.weight"]), p["mtp.0.main_norm.weight"], c.rms_norm_eps)
    tok = torch.full((*anchors.flatten(1).shape, blk), c.dspark_noise_token_id, device=ids.device)
    tok[..., 0] = torch.gather(ids, 1, anchors.flatten(1))
    where = (anchors.flatten(1).unsqueeze(-1) + torch.arange(blk, device=ids.device)).flatten(1)
    cos, sin = ctx.plain[0][where], ctx.plain[1][where]
    tok = tok.flatten(1)
    X = F.embedding(tok, p["embed.weight"]).to(ctx.dtype).unsqueeze(2).expand(-1, -1, 4, -1).contiguous()
    T = ids.shape[1]
    loads = []
    for n in range(c.stages):
        L = sub(p, f"mtp.{n}.")
        a = sub(L, "attn.")
        rows = project_kv(main, a, ctx.plain[0][:T], ctx.plain[1][:T], ctx.sim >= 1, c.rms_norm_eps)
        X, _ = sublayer(
            X,
            L,
            "attn",
            c,
            lambda x: (
                draft_attention(
                    x,
                    rows,
                    a,
                    anchors,
                    doc,
                    cos,
                    sin,
                    c.num_attention_heads,
                    c.o_groups,
                    blk,
                    ctx.sim >= 1,
                    c.rms_norm_eps,
                ),
                None,
            ),
        )
        X, load = sublayer(X, L, "ffn", c, lambda x: ffn(x, L, c, None, tok))
        loads.append(load)
    m = sub(p, f"mtp.{c.stages - 1}.")
    h = hc_head(X, m["hc_head_fn"], m["hc_head_scale"], m["hc_head_base"], c.rms_norm_eps, c.hc_eps)
    base = linear(rms(h, m["norm.weight"], c.rms_norm_eps), p["head.weight"])
    return h.unflatten(1, (-1, blk)), base.unflatten(1, (-1, blk)), loads


def draft_heads(p, h, base, prev, c):
    """Markov-corrected logits and confidence logits of rows whose previous tokens are known."""
    m = sub(p, f"mtp.{c.stages - 1}.")
    e = F.embedding(prev, m["markov_head.markov_w1.weight"]).to(h.dtype)
    logits = base + linear(e, m["markov_head.markov_w2.weight"])
    conf = linear(torch.cat([h, e], -1).float(), m["confidence_head.proj.weight"])
    return logits, conf.squeeze(-1)


def draft_chain(p, h, base, anchor_tokens, c):
    """Greedy drafts [..., block] and confidence logits, chained through the Markov head."""
    prev, drafts, confs = anchor_tokens, [], []
    for i in range(base.shape[-2]):
        logits, conf = draft_heads(p, h[..., i, :], base[..., i, :], prev, c)
        prev = logits.argmax(-1)
        drafts.append(prev)
        confs.append(conf)
    return torch.stack(drafts, -1), torch.stack(confs, -1)
