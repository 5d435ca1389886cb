"""Writing GGUF v3 files of DeepSeek-V4 models from Python: metadata, names, block encodings.

Standard library and numpy only. Used by the scripts that make test models; the product's own converter is
ds4-quantize. Layouts are facts of the ggml/GGUF formats."""
import struct

import numpy as np

F32, F16, Q8_0, I32, MXFP4 = 0, 1, 8, 26, 39
BLOCK = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), I32: (1, 4), MXFP4: (32, 17)}


def _string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def _value(v):
    """One metadata value with its type: int -> u32, float -> f32, bool, str, list of int (i32) or float (f32)."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + _string(v)
    kind, fmt = (6, "f") if isinstance(v[0], float) else (5, "i")
    return struct.pack("<IIQ", 9, kind, len(v)) + struct.pack(f"<{len(v)}{fmt}", *v)


def encode(kind, a):
    """Bytes of float32 array a (last axis = inputs) in a tensor type. Q8_0: d = amax/127; MXFP4: the smallest scale
    that holds amax."""
    if kind == F32:
        return np.ascontiguousarray(a, "<f4").tobytes()
    if kind == F16:
        return a.astype("<f2").tobytes()
    if kind == I32:
        return a.astype("<i4").tobytes()
    b = np.ascontiguousarray(a, np.float32).reshape(-1, 32)
    amax = np.abs(b).max(axis=1)
    if kind == Q8_0:
        d = (amax / np.float32(127)).astype("<f2")
        inv = np.where(d > 0, np.float32(1) / np.where(d > 0, d, 1).astype(np.float32), 0)
        return pack_q8(d, np.rint(b * inv[:, None]).astype(np.int8))
    exp = np.ceil(np.log2(np.maximum(amax, np.float32(1e-30)) / 6)).astype(np.int32)
    grid = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
    scaled = np.abs(b / np.exp2(exp.astype(np.float32))[:, None])
    code = np.abs(scaled[:, :, None] - grid).argmin(axis=2).astype(np.uint8)
    return pack_mxfp4((exp + 127).astype(np.uint8), code | np.where(b < 0, 8, 0).astype(np.uint8))


def pack_q8(d, q):
    """d: f16 [blocks], q: int8 [blocks, 32]."""
    out = np.empty((len(d), 34), np.uint8)
    out[:, :2] = d.astype("<f2").view(np.uint8).reshape(-1, 2)
    out[:, 2:] = q.view(np.uint8)
    return out.tobytes()


def pack_mxfp4(e, code):
    """e: uint8 exponents [blocks], code: uint8 [blocks, 32]; element j is the low nibble of byte j, j + 16 the high."""
    out = np.empty((len(e), 17), np.uint8)
    out[:, 0] = e
    out[:, 1:] = code[:, :16] | (code[:, 16:] << 4)
    return out.tobytes()


class Writer:
    """Collects metadata and tensors; a tensor's data is a function called while the file is written, so that memory
    stays small."""

    def __init__(self):
        self.kv, self.tensors = [], []

    def add(self, key, value):
        self.kv.append(_string(key) + _value(value))

    def tensor(self, name, kind, shape, data):
        """shape as in numpy (slowest first); data() yields byte strings."""
        block, size = BLOCK[kind]
        n = int(np.prod(shape))
        assert shape[-1] % block == 0, name
        self.tensors.append((name, kind, shape, n // block * size, data))

    def write(self, path):
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.kv)) + b"".join(self.kv)
        at = 0
        for name, kind, shape, size, _ in self.tensors:
            ne = list(reversed(shape))
            head += _string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, at)
            at += -(-size // 32) * 32
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % 32))
            for name, _, _, size, data in self.tensors:
                done = 0
                for piece in data():
                    f.write(piece)
                    done += len(piece)
                assert done == size, (name, done, size)
                f.write(bytes(-size % 32))


TOP = {"embed.weight": "token_embd.weight", "head.weight": "output.weight", "norm.weight": "output_norm.weight",
       "hc_head_fn": "output_hc_fn.weight", "hc_head_base": "output_hc_base.weight",
       "hc_head_scale": "output_hc_scale.weight"}
LAYER = {"attn.wq_a.weight": "attn_q_a.weight", "attn.q_norm.weight": "attn_q_a_norm.weight",
         "attn.wq_b.weight": "attn_q_b.weight", "attn.wkv.weight": "attn_kv.weight",
         "attn.kv_norm.weight": "attn_kv_a_norm.weight", "attn.attn_sink": "attn_sinks.weight",
         "attn.wo_a.weight": "attn_output_a.weight", "attn.wo_b.weight": "attn_output_b.weight",
         "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
         "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
         "attn.compressor.ape": "attn_compressor_ape.weight",
         "attn.compressor.norm.weight": "attn_compressor_norm.weight",
         "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
         "attn.indexer.weights_proj.weight": "indexer.proj.weight",
         "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
         "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
         "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
         "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
         "ffn.gate.weight": "ffn_gate_inp.weight", "ffn.gate.bias": "exp_probs_b.bias",
         "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight", "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
         "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
         "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight"}
EXPERT = {"w1": "ffn_gate_exps.weight", "w2": "ffn_down_exps.weight", "w3": "ffn_up_exps.weight"}


def gguf_name(hf):
    """GGUF name of an official tensor name; experts: (name, expert number)."""
    if hf in TOP:
        return TOP[hf], None
    head, n, rest = hf.split(".", 2)
    prefix = f"blk.{n}." if head == "layers" else f"mtp.{n}."
    if rest.startswith("ffn.experts."):
        _, _, e, w, _ = rest.split(".")
        return prefix + EXPERT[w], int(e)
    if rest.startswith("hc_"):
        return prefix + rest + ".weight", None
    return prefix + LAYER.get(rest, rest), None


def trunk_metadata(w, c):
    """Metadata of a trunk from an official config.json."""
    p, rope = "deepseek4.", c["rope_scaling"]
    w.add("general.architecture", "deepseek4")
    for key, value in {
            "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "vocab_size": c["vocab_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": 1,
            "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
            "attention.q_lora_rank": c["q_lora_rank"], "attention.output_lora_rank": c["o_lora_rank"],
            "attention.output_group_count": c["o_groups"], "attention.sliding_window": c["sliding_window"],
            "attention.compress_ratios": c["compress_ratios"],
            "attention.compress_rope_freq_base": float(c["compress_rope_theta"]),
            "attention.indexer.head_count": c["index_n_heads"], "attention.indexer.key_length": c["index_head_dim"],
            "attention.indexer.top_k": c["index_topk"], "rope.dimension_count": c["qk_rope_head_dim"],
            "rope.freq_base": float(c["rope_theta"]), "rope.scaling.type": rope["type"],
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]), "hyper_connection.count": c["hc_mult"],
            "hyper_connection.sinkhorn_iterations": c["hc_sinkhorn_iters"],
            "hyper_connection.epsilon": float(c["hc_eps"]), "hash_layer_count": c["num_hash_layers"],
            "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
            "expert_shared_count": 1, "expert_feed_forward_length": c["moe_intermediate_size"],
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_weights_norm": True,
            "expert_gating_func": 4, "nextn_predict_layers": 1,
            "swiglu_clamp_exp": [float(c["swiglu_limit"])] * c["num_hidden_layers"]}.items():
        w.add(p + key, value)


def drafter_metadata(w, c):
    stages = len(c["compress_ratios"]) - c["num_hidden_layers"]
    w.add("general.architecture", "deepseek4-dspark")
    for key, value in {"block_size": c["dspark_block_size"], "markov_rank": c["dspark_markov_rank"],
                       "noise_token_id": c["dspark_noise_token_id"], "target_layer_ids": c["dspark_target_layer_ids"],
                       "stage_count": stages, "n_layers": stages}.items():
        w.add("dspark." + key, value)
