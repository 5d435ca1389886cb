"""Compares model.py with golden logits of the official reference mathematics (see the README of the golden data).

usage: check_reference.py GOLDEN_DIR"""

import json
import sys

import numpy as np
import torch
from safetensors.torch import load_file

import model as M


def run(p, ids, c, sim):
    ids = torch.tensor([ids])
    n = ids.shape[1]
    ids, doc = M.pad_to_block(ids, torch.zeros_like(ids))
    ctx = M.Context(c, ids.shape[1] + 8, "cpu", torch.float32, sim)
    ctx_t = M.Context(c, ids.shape[1], "cpu", torch.float32, sim)
    X, taps, _, _ = M.trunk(p, ids, doc, ctx_t)
    return M.head(p, X, c)[0, :n], taps, ids, doc, ctx


def main(d):
    torch.set_grad_enabled(False)
    c = M.Config.load(d + "/config.json")
    p = M.from_hf(load_file(d + "/model.safetensors"), c)
    seqs, gold = json.load(open(d + "/sequences.json")), json.load(open(d + "/golden.json"))
    for mode, sim in (("exact", 0), ("kvfp8", 1), ("full", 2)):
        for name, ids in seqs.items():
            logits = run(p, ids, c, sim)[0].numpy()
            g = gold["sequences"][name]
            diff = np.abs(logits[g["logit_positions"]] - np.load(f"{d}/logits_{name}_{mode}.npy")).max(1)
            m = np.array(g["margin_" + mode])
            agree = (logits.argmax(1) == np.array(g["argmax_" + mode]))[m > (1e-3 if sim == 0 else 0.1)].mean()
            noise = np.array(g["noise_" + mode])[g["logit_positions"]]
            bad = (diff > np.maximum(0.1, 10 * noise)).mean()
            ok = (
                diff.max() < 5e-4 and agree == 1
                if sim == 0
                else np.median(diff) <= 0.1 and bad <= 0.05 and agree >= 0.95
            )
            print(
                f"{mode} {name}: max {diff.max():.2e} median {np.median(diff):.2e} argmax {agree:.4f}"
                f" {'ok' if ok else 'FAIL'}"
            )
    doc = json.load(open(d + "/dspark_exact.json"))
    seq, worst, same = seqs[doc["sequence"]], 0.0, 0
    cases = doc["cases"]
    for case in cases:
        n = case["context_length"]
        _, taps, ids, dc, ctx = run(p, seq[:n] + [case["anchor"]], c, 0)
        anchors = (
            torch.zeros(1, ids.shape[1] // 128, 1, dtype=torch.long)
            + torch.arange(ids.shape[1] // 128)[None, :, None] * 128
        )
        anchors[0, n // 128, 0] = n
        h, base, _ = M.drafter(p, taps, ids, dc, anchors, ctx)
        k = n // 128
        drafts, conf = M.draft_chain(p, h[:, k], base[:, k], torch.tensor([case["anchor"]]), c)
        same += drafts[0].tolist() == case["drafts"]
        worst = max(worst, (conf[0] - torch.tensor(case["confidence_logits"])).abs().max().item())
    print(f"drafter: {same}/{len(cases)} identical drafts, confidence logit difference {worst:.2e}")


main(sys.argv[1])
