"""Trains the small model. Every phase is bounded by wall-clock seconds, so it fits a lease of known length.

usage: train.py trunk    --until S --total T ...   trunk training from second 0 (or the checkpoint) to second S of T
       train.py drafter  --seconds S ...           DSpark drafter on the frozen, quantised trunk
       train.py report   ...                       samples and acceptance of a finished pair
Checkpoints live in --work; exports (see quant.save_parts) go to --out."""

import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F

import data as D
import model as M
import quant as Q

PROMPTS = [
    "Hello",
    "Explain Redis in one sentence.",
    "What is 17 times 23?",
    "Write a Python function that reverses a string.",
    "Complete this C function: int add(int a, int b) {",
]
CODE = [
    "Write a Python function that checks whether a number is prime.",
    "Complete this C function: int max(int a, int b) {",
    "Write a Python function that searches a sorted list with binary search.",
    "Complete this C function: int factorial(int n) {",
    "Write a Python function that adds two numbers.",
    "Complete this C function: int mul(int a, int b) {",
]
TEXT = [
    "Tell me a short story.",
    "What is a database?",
    "Explain the moon in one sentence.",
    "List five fruits.",
    "What is the capital of France?",
    "Who are you?",
    "Explain recursion in two sentences.",
    "Write a story about Anna and Tom.",
]


# ---------------------------------------------------------------- optimiser


@torch.no_grad()
def newton_schulz(g, steps=5):
    """Approximate orthogonalisation of a stack of matrices (Muon)."""
    x = g.bfloat16() if g.is_cuda else g
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if wide else x).float()


class Optimizer:
    """Muon for weight matrices, Adam for the rest. `lr` scales both."""

    ADAM = (
        "embed.weight",
        "head.weight",
        "_fn",
        "ape",
        "gate.weight",
        "markov_w1.weight",
        "markov_w2.weight",
        "confidence_head.proj.weight",
    )

    def __init__(self, params, muon_lr=3e-3, adam_lr=2e-3):
        self.stacks, adam = {}, []
        for k, w in params.items():
            if w.dim() < 2 or k.endswith(self.ADAM):
                adam.append(w)
            else:
                self.stacks.setdefault(tuple(w.shape[-2:]), []).append(w)
        self.mom = {
            s: torch.zeros(sum(w.numel() for w in ws) // (s[0] * s[1]), *s, device=ws[0].device)
            for s, ws in self.stacks.items()
        }
        self.adam = torch.optim.AdamW(adam, lr=adam_lr, betas=(0.9, 0.97), weight_decay=0.0, fused=adam[0].is_cuda)
        self.muon_lr, self.adam_lr, self.all = muon_lr, adam_lr, list(params.values())

    def step(self, scale):
        """One update; a gradient that is not finite is dropped. Returns whether the step was taken."""
        if not torch.isfinite(torch.nn.utils.clip_grad_norm_(self.all, 1.0)):
            for w in self.all:
                w.grad = None
            return False
        for g in self.adam.param_groups:
            g["lr"] = self.adam_lr * scale
        self.adam.step()
        lr = self.muon_lr * scale
        with torch.no_grad():
            for s, ws in self.stacks.items():
                g = torch.cat([w.grad.reshape(-1, *s) for w in ws])
                m = self.mom[s].lerp_(g, 0.05)
                u = newton_schulz(g.lerp(m, 0.95)) * (0.2 * max(s) ** 0.5)
                i = 0
                for w in ws:
                    n = w.numel() // (s[0] * s[1])
                    w.mul_(1 - 0.05 * lr).add_(u[i : i + n].view_as(w), alpha=-lr)
                    i += n
        for w in self.all:
            w.grad = None
        return True

    def state(self):
        return {"mom": self.mom, "adam": self.adam.state_dict()}

    def load(self, s):
        self.mom = s["mom"]
        self.adam.load_state_dict(s["adam"])


# ---------------------------------------------------------------- batches in the background


class Feed(torch.utils.data.IterableDataset):
    def __init__(self, a, length, rows):
        self.a, self.length, self.rows = a, length, rows

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        b = D.Batches(self.a.data + "/corpus.npz", self.length, self.a.seed * 1000 + (info.id if info else 0))
        while True:
            ids, doc = b.rows(self.rows)
            yield torch.from_numpy(ids), torch.from_numpy(doc)


def feed(a, length, rows):
    n = a.workers
    loader = torch.utils.data.DataLoader(
        Feed(a, length, rows),
        batch_size=None,
        num_workers=n,
        prefetch_factor=4 if n else None,
        pin_memory=a.device == "cuda",
    )
    for ids, doc in loader:
        yield ids.to(a.device, non_blocking=True), doc.to(a.device, non_blocking=True)


# ---------------------------------------------------------------- trunk


@M.maybe_compile
def token_loss(logits, ids, doc):
    """Mean cross entropy of next tokens inside documents, and the number of such tokens."""
    target, ok = ids[:, 1:], (doc[:, 1:] == doc[:, :-1]) & (doc[:, 1:] >= 0)
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), target.flatten(), reduction="none")
    ok = ok.flatten().float()
    return (nll * ok).sum() / ok.sum()


@torch.no_grad()
def balance(p, c, loads, doc, rate, prefix="layers.{}.", first=None):
    live = (doc >= 0).unsqueeze(-1).float()
    worst = 0.0
    for n, load in enumerate(loads):
        b = p.get(prefix.format(n) + "ffn.gate.bias")
        if b is not None:
            share = (load * live).sum((0, 1)) / live.sum()
            b.add_(torch.sign(share.mean() - share), alpha=rate)
            worst = max(worst, share.max())
    return worst


def schedule(f, warm=0.02, flat=0.45):
    return min(1.0, f / warm) if f < flat else max(0.02, (1 - f) / (1 - flat))


def trainable(p):
    return {k: w for k, w in p.items() if not k.endswith(("tid2eid", "gate.bias")) and not k.startswith("table.")}


def add_tables(p, c):
    return p | {f"table.{n}": M.expert_table(p, n, c) for n in range(c.num_hash_layers)}


def train_trunk(a, c, grid):
    start = time.time()
    ck = f"{a.work}/trunk.pt"
    p = M.init(M.trunk_shapes(c), a.seed, a.device)
    spent, step, state = 0.0, 0, None
    if os.path.exists(ck):
        saved = torch.load(ck, map_location=a.device)
        p, spent, step, state = saved["p"], saved["spent"], saved["step"], saved["opt"]
    w = trainable(p)
    for t in w.values():
        t.requires_grad_(True)
    opt = Optimizer(w)
    if state:
        opt.load(state)
    ctx = M.Context(c, a.length, a.device, a.dtype)
    batches = feed(a, a.length, a.rows)
    first, last_log, logged, saved_at = time.time(), 0.0, step, time.time()
    if not spent:
        spent = -1e-9
    clock = None
    log = open(f"{a.work}/trunk_log.txt", "a")
    while True:
        now = spent + (time.time() - clock if clock else 0.0)
        f = max(now, 0) / a.total
        if now >= a.until or time.time() - start > a.hard or step >= a.max_steps:
            break
        qat = f >= a.qat or a.qat <= 0
        ids, doc = next(batches)
        live = add_tables(Q.quantised(p, grid) if qat else p, c)
        X, _, loads, index_loss = M.trunk(live, ids, doc, ctx)
        loss = token_loss(M.head(live, X, c), ids, doc)
        (loss + 0.1 * index_loss).backward()
        opt.step(min(schedule(f), 0.05 * (step - logged + 1)))
        worst = balance(p, c, loads, doc, 1e-3 * schedule(f))
        step += 1
        if step <= 3:
            print(f"step {step} after {time.time() - first:.1f} s", flush=True)
        if step == logged + 3 and not clock:
            torch.cuda.synchronize() if a.device == "cuda" else None
            clock = time.time()
            print(f"first steps took {clock - first:.1f} s", flush=True)
        if clock and step % a.log == 0:
            il = float(torch.as_tensor(index_loss).detach())
            line = (
                f"step {step} second {now:.0f} loss {loss.item():.4f} index {il:.3f} busiest expert"
                f" {float(worst):.3f} qat {int(qat)} tokens/s"
                f" {(step - logged) * ids.numel() / (time.time() - clock):.0f}"
            )
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()
        if time.time() - saved_at > a.save:
            save_trunk(ck, p, spent + (time.time() - clock if clock else 0), step, opt)
            saved_at = time.time()
    save_trunk(ck, p, spent + (time.time() - clock if clock else 0), step, opt)
    if a.device == "cuda":
        print("peak memory GB", torch.cuda.max_memory_allocated() / 1e9)
    with torch.no_grad():
        Q.save_parts(p, grid, f"{a.out}/trunk")
    if a.samples:
        samples(a, c, {k: t.detach() for k, t in p.items()}, grid, PROMPTS + TEXT[:3])


def save_trunk(path, p, spent, step, opt):
    torch.save(
        {"p": {k: t.detach() for k, t in p.items()}, "spent": spent, "step": step, "opt": opt.state()},
        path + ".tmp",
    )
    os.replace(path + ".tmp", path)


# ---------------------------------------------------------------- drafter


@M.maybe_compile
def draft_losses(logits, conf, target_logits, ok, decay):
    """0.1 CE + 0.9 total variation + confidence BCE with position weights; rows [..., block]."""
    pd, pt = logits.float().softmax(-1), target_logits.float().softmax(-1)
    tv = 0.5 * (pd - pt).abs().sum(-1)
    ce = F.cross_entropy(
        logits.float().flatten(0, -2), target_logits.argmax(-1).flatten(), reduction="none"
    ).view_as(tv)
    bce = F.binary_cross_entropy_with_logits(conf, (1 - tv).detach().clamp(0, 1), reduction="none")
    w = ok * torch.exp(-torch.arange(ok.shape[-1], device=ok.device) / decay)
    hit = (logits.argmax(-1) == target_logits.argmax(-1)).float() * ok
    mean = lambda t: (t * w).sum() / w.sum()
    return 0.1 * mean(ce) + 0.9 * 2 * mean(tv) + mean(bce), hit.sum((0, 1)) / ok.sum((0, 1))


def stance(slow):
    return torch.compiler.set_stance("force_eager" if slow else "default")


def draft_step(p, taps, target, ids, doc, anchors, ctx, c):
    """Loss, hits per position and expert loads of teacher-forced draft blocks at the anchors."""
    blk, T = c.dspark_block_size, ids.shape[1]
    h, base, loads = M.drafter(p, taps, ids, doc, anchors, ctx)
    where = anchors.flatten(1).unsqueeze(-1) + torch.arange(blk, device=ids.device)
    room, where = where < T, where.clamp_max(T - 1)
    prev = torch.gather(ids, 1, where.flatten(1)).view_as(where)
    docs = torch.gather(doc, 1, where.flatten(1)).view_as(where)
    before = torch.gather(doc, 1, (anchors.flatten(1) - 1).clamp_min(0)).unsqueeze(-1)
    ok = ((docs == docs[..., :1]) & (docs >= 0) & room & (before == docs[..., :1])).float()
    logits, conf = M.draft_heads(p, h, base, prev, c)
    goal = torch.gather(target, 1, where.flatten(1).unsqueeze(-1).expand(-1, -1, target.shape[-1])).view_as(logits)
    loss, hits = draft_losses(logits, conf, goal, ok, 4.0)
    return loss, hits, loads


def train_drafter(a, c, grid):
    start = time.time()
    trunk_p = torch.load(f"{a.work}/trunk.pt", map_location=a.device)["p"]
    with torch.no_grad():
        frozen = add_tables({k: t.detach() for k, t in Q.quantised(trunk_p, grid).items()}, c)
        frozen = {
            k: t.to(a.dtype) if t.dim() > 1 and t.is_floating_point() and not k.startswith("table") else t
            for k, t in frozen.items()
        }
    p = M.init(M.drafter_shapes(c), a.seed + 1, a.device)
    w = trainable(p)
    for t in w.values():
        t.requires_grad_(True)
    opt = Optimizer(w)
    ctx = M.Context(c, a.length + 8, a.device, a.dtype)
    ctx_t = M.Context(c, a.length, a.device, a.dtype)
    every = 8
    clock, step, saved_at, bad, slow = None, 0, time.time(), 0, {"trunk": False, "drafter": False}
    log = open(f"{a.work}/drafter_log.txt", "a")
    for ids, doc in feed(a, a.length, a.rows):
        now = time.time() - clock if clock else 0.0
        f = now / a.seconds
        if f >= 1 or time.time() - start > a.hard or step >= a.max_steps:
            break
        with torch.no_grad(), stance(slow["trunk"]):
            X, taps, _, _ = M.trunk(frozen, ids, doc, ctx_t)
            target = M.head(frozen, X, c)
        B, T = ids.shape
        base_pos = torch.arange(0, T, every, device=ids.device).view(1, T // 128, -1)
        anchors = base_pos + torch.randint(0, every, (B, *base_pos.shape[1:]), device=ids.device)
        live = (Q.quantised(p, grid, "mtp.") if f >= a.qat else p) | {
            k: frozen[k] for k in ("embed.weight", "head.weight")
        }
        with stance(slow["drafter"]):
            loss, hits, loads = draft_step(live, taps, target, ids, doc, anchors, ctx, c)
            loss.backward()
        if opt.step(min(schedule(f, flat=0.4), 0.05 * (step + 1))):
            balance(p, c, loads, torch.zeros_like(loads[0][..., 0]), 1e-3 * schedule(f), "mtp.{}.")
        else:
            bad += 1
            if bad in (1, 3, 10):
                finite = lambda t: bool(torch.isfinite(t).all())
                with torch.no_grad(), stance(True):
                    X2, taps2, _, _ = M.trunk(frozen, ids, doc, ctx_t)
                    target2 = M.head(frozen, X2, c)
                    loss2 = draft_step(live, taps2, target2, ids, doc, anchors, ctx, c)[0]
                print(
                    f"step {step} not finite: loss {float(loss.detach())} target {finite(target)} taps"
                    f" {finite(taps)}; eager: target {finite(target2)} taps {finite(taps2)} loss {float(loss2)};"
                    f" weights {all(finite(t) for t in p.values())} worst tap difference"
                    f" {float((taps2.float() - taps.float()).abs().max())}",
                    flush=True,
                )
                del X2, taps2, target2, loss2
                if not finite(target) and bad >= 3:
                    slow["trunk"] = True
                elif bad >= 3:
                    slow["drafter"] = True
        step += 1
        if step == 3:
            torch.cuda.synchronize() if a.device == "cuda" else None
            clock = time.time()
            print(f"first steps took {clock - start:.1f} s", flush=True)
        if clock and step % a.log == 0:
            line = (
                f"draft step {step} second {now:.0f} loss {loss.item():.4f} hits"
                f" {[round(x, 3) for x in hits.tolist()]} dropped {bad}"
            )
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()
        if time.time() - saved_at > a.save:
            torch.save({k: t.detach() for k, t in p.items()}, f"{a.work}/drafter.pt")
            saved_at = time.time()
    p = {k: t.detach() for k, t in p.items()}
    torch.save(p, f"{a.work}/drafter.pt")
    Q.save_parts(p, grid, f"{a.out}/drafter")
    Q.save_parts(trunk_p, grid, f"{a.out}/trunk")
    if a.samples:
        report(a, c, trunk_p | p, grid)


# ---------------------------------------------------------------- samples and acceptance


def eager(fn):
    def wrapped(*args, **kw):
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return fn(*args, **kw)

    return wrapped


@eager
def generate(a, c, p, enc, prompts, n):
    """Greedy continuations of several prompts at once, recomputing everything for each token."""
    rows = [enc.prompt(q) for q in prompts]
    T = -(-(max(map(len, rows)) + n) // 128) * 128
    ids, doc = torch.full((len(rows), T), 2, device=a.device), torch.full((len(rows), T), -1, device=a.device)
    size = [len(r) for r in rows]
    for i, r in enumerate(rows):
        ids[i, : len(r)], doc[i, :] = torch.tensor(r, device=a.device), 0
    ctx, done = M.Context(c, T, a.device, a.dtype), [False] * len(rows)
    at = torch.tensor(size, device=a.device)
    for _ in range(n):
        X = M.trunk(p, ids, doc, ctx)[0]
        nxt = M.head(p, X[torch.arange(len(rows)), at - 1][:, None], c)[:, 0].argmax(-1)
        for i, t in enumerate(nxt.tolist()):
            if not done[i]:
                ids[i, size[i]] = t
                size[i] += 1
                done[i] = t == 1
        at = torch.tensor(size, device=a.device)
        if all(done):
            break
    return ids, doc, [len(r) for r in rows], size


def samples(a, c, p, grid, prompts, n=96):
    enc = D.Encoder(a.data + "/tokenizer.json")
    p = add_tables({k: t.detach() for k, t in Q.quantised(p, grid).items()}, c)
    ids, _, start, size = generate(a, c, p, enc, prompts, n)
    for i, q in enumerate(prompts):
        print(f"--- {q}\n{enc.decode(ids[i, start[i]:size[i]].tolist())}", flush=True)


@eager
def acceptance(a, c, p, enc, prompts, n, threshold):
    """Simulated greedy cycles over generated text: per-position acceptance, mean length, confidence against truth."""
    ids, doc, start, size = generate(a, c, p, enc, prompts, n)
    T = ids.shape[1]
    ctx, ctx_t = M.Context(c, T + 8, a.device, a.dtype), M.Context(c, T, a.device, a.dtype)
    _, taps, _, _ = M.trunk(p, ids, doc, ctx_t)
    anchors = torch.arange(T, device=a.device).view(1, -1, 128).expand(len(prompts), -1, -1)
    h, base, _ = M.drafter(p, taps, ids, doc, anchors, ctx)
    drafts, conf = M.draft_chain(p, h, base, ids, c)
    drafts, conf, ids = drafts.cpu(), torch.sigmoid(conf.float()).cpu(), ids.cpu()
    blk = drafts.shape[-1]
    seen, hit, csum = [0] * blk, [0] * blk, [0.0] * blk
    cycles = [0, 0]
    total = [0, 0]
    proposed = 0
    for i in range(len(prompts)):
        for use in (0, 1):
            pos = start[i]
            while pos < size[i] - 1:
                k = 0
                for j in range(blk):
                    if pos + 1 + j >= size[i] or (use and conf[i, pos, j] < threshold):
                        break
                    proposed += use
                    good = int(drafts[i, pos, j]) == int(ids[i, pos + 1 + j])
                    if not use:
                        seen[j] += 1
                        hit[j] += good
                        csum[j] += float(conf[i, pos, j])
                    if not good:
                        break
                    k += 1
                cycles[use] += 1
                total[use] += k + 1
                pos += k + 1
    show = lambda x: [round(v / max(1, s), 3) for v, s in zip(x, seen)]
    accepted = total[1] - cycles[1]
    return (
        f"acceptance by position {show(hit)} confidence {show(csum)} mean length"
        f" {total[0] / max(1, cycles[0]):.2f}; at threshold {threshold}: mean length"
        f" {total[1] / max(1, cycles[1]):.2f}, accepted {accepted} of {proposed} proposed in {total[1]} tokens"
    )


def report(a, c, p, grid):
    enc = D.Encoder(a.data + "/tokenizer.json")
    p = add_tables({k: t.detach() for k, t in Q.quantised(p, grid).items()}, c)
    for name, prompts, n in (
        ("code", CODE + PROMPTS[3:], 96),
        ("text", TEXT + PROMPTS[1:2], 96),
        ("c_add", PROMPTS[4:], 32),
    ):
        print(name, acceptance(a, c, p, enc, prompts, n, 0.7), flush=True)
    samples(a, c, p, grid, PROMPTS + TEXT[:4] + CODE[:2], 128)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("phase", choices=["trunk", "drafter", "report"])
    here = os.path.dirname(os.path.abspath(__file__))
    for name, kind, default in (
        ("data", str, here + "/work/data"),
        ("config", str, here + "/config.json"),
        ("work", str, "/tmp/mini"),
        ("out", str, "/tmp/mini/out"),
        ("until", float, 600),
        ("total", float, 600),
        ("seconds", float, 300),
        ("hard", float, 1e9),
        ("qat", float, 0.65),
        ("length", int, 1024),
        ("rows", int, 64),
        ("log", int, 50),
        ("save", float, 90),
        ("seed", int, 1),
        ("workers", int, 8),
        ("samples", int, 1),
        ("max_steps", int, 10**9),
    ):
        ap.add_argument("--" + name, type=kind, default=default)
    a = ap.parse_args()
    a.device = "cuda" if torch.cuda.is_available() else "cpu"
    a.dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    os.makedirs(a.work, exist_ok=True)
    os.makedirs(a.out, exist_ok=True)
    torch._dynamo.config.recompile_limit = 64
    torch.set_float32_matmul_precision("high")
    c = M.Config.load(a.config)
    grid = Q.load_grid(a.data + "/iq2xxs_grid.bin", a.device)
    if a.phase == "trunk":
        train_trunk(a, c, grid)
    elif a.phase == "drafter":
        train_drafter(a, c, grid)
    else:
        p = torch.load(f"{a.work}/trunk.pt", map_location=a.device)["p"] | torch.load(
            f"{a.work}/drafter.pt", map_location=a.device
        )
        report(a, c, p, grid)


if __name__ == "__main__":
    main()
