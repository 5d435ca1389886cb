"""Turns the parts that train.py wrote into an official-style checkpoint folder.

usage: export.py PARTS_DIR DATA_DIR OUT_DIR
Routed experts are written with their exact two-bit values (float32), everything else in float32."""

import glob
import json
import os
import shutil
import sys

from safetensors.torch import save_file

import data as D
import model as M
import quant as Q


def main(parts, data, out, shard=180 << 20):
    c = M.Config.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.json"))
    grid = Q.load_grid(data + "/iq2xxs_grid.bin", "cpu")
    shapes = M.trunk_shapes(c) | M.drafter_shapes(c)
    p = Q.load_parts(sorted(glob.glob(parts + "/trunk-*.npz") + glob.glob(parts + "/drafter-*.npz")), grid, shapes)
    missing = set(shapes) - set(p)
    assert not missing, missing
    assert all(tuple(p[k].shape) == tuple(s) for k, s in shapes.items())
    assert c.dspark_noise_token_id == D.ID["<｜noise｜>"]
    shards, size = [{}], 0
    for k, t in M.to_hf(p).items():
        n = t.numel() * t.element_size()
        if size + n > shard:
            shards.append({})
            size = 0
        shards[-1][k] = t.contiguous().clone()
        size += n
    os.makedirs(out, exist_ok=True)
    index = {}
    for i, s in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(s, f"{out}/{name}", metadata={"format": "pt"})
        index |= {k: name for k in s}
    json.dump(
        {
            "metadata": {"total_size": sum(os.path.getsize(f) for f in glob.glob(out + "/*.safetensors"))},
            "weight_map": index,
        },
        open(out + "/model.safetensors.index.json", "w"),
        indent=1,
    )
    json.dump(c, open(out + "/config.json", "w"), indent=1)
    json.dump(
        {
            "bos_token": D.BOS,
            "eos_token": D.EOS,
            "pad_token": D.PAD,
            "add_bos_token": False,
            "add_eos_token": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": c.max_position_embeddings,
        },
        open(out + "/tokenizer_config.json", "w"),
        indent=1,
        ensure_ascii=False,
    )
    json.dump(
        {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0, "top_p": 1.0},
        open(out + "/generation_config.json", "w"),
        indent=1,
    )
    shutil.copy(data + "/tokenizer.json", out)
    print(len(index), "tensors,", len(shards), "files")


main(*sys.argv[1:4])
