#!/usr/bin/env python3
"""vocab_gguf.py IN.json OUT.gguf: a vocabulary-only GGUF for DeepSeek-V4 from a Hugging Face tokenizer.json.

The 128,000 ordinary tokens and the merges are taken as they are. Added tokens keep their ids unless DeepSeek-V4
gives that id to another token; its protocol tokens get their V4 ids; ids that nobody names become placeholders, up to
129,280. The file has no tensors: it serves --dump-tokens, tests, and as the tokenizer part of a converted model.
Standard library only.
"""
import json
import os
import struct
import sys

VOCAB = 129280
NORMAL, CONTROL, USER = 1, 3, 4
U32, I32, BOOL, STRING, ARRAY = 4, 5, 7, 8, 9

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
V4_IDS = {
    BOS: 0,
    EOS: 1,
    PAD: 2,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<think>": 128821,
    "</think>": 128822,
    "｜DSML｜": 128825,
    "<｜latest_reminder｜>": 128828,
    "<｜action｜>": 128829,
    # The ids of these are not published in any vector we have: the engine finds them by text, so any free id will do.
    "<｜query｜>": 128830,
    "<｜authority｜>": 128831,
    "<｜domain｜>": 128832,
    "<｜title｜>": 128833,
    "<｜read_url｜>": 128834,
    "<｜extracted_url｜>": 128835,
}


def fail(text):
    sys.exit("vocab_gguf.py: " + text)


def read_tokenizer(path):
    try:
        with open(path, encoding="utf-8") as f:
            tok = json.load(f)
        model = tok["model"]
        vocab, merges = model["vocab"], model["merges"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        fail("%s is not a readable tokenizer.json: %s" % (path, err))
    if model.get("type") != "BPE":
        fail("%s: model type is %r, expected 'BPE'" % (path, model.get("type")))
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    return vocab, merges, tok.get("added_tokens", [])


def place(vocab, added):
    """The token text and type of every id."""
    text, kind = [None] * VOCAB, [CONTROL] * VOCAB
    taken = {}

    def put(name, i, k):
        if not 0 <= i < VOCAB:
            fail("token %r has id %d, outside 0 to %d" % (name, i, VOCAB - 1))
        if text[i] is not None:
            fail("id %d is wanted by %r and %r" % (i, text[i], name))
        text[i], kind[i] = name, k
        taken[name] = i

    specials = {a["content"]: a.get("special", True) for a in added}
    for name, i in V4_IDS.items():
        put(name, i, CONTROL if specials.get(name, name.startswith("<｜")) else USER)
    for a in added:
        name, i = a["content"], a["id"]
        if name not in taken and 0 <= i < VOCAB and text[i] is None:
            put(name, i, CONTROL if a.get("special") else USER)
    for name, i in vocab.items():
        if name not in specials and name not in V4_IDS:
            put(name, i, NORMAL)
    number = 0
    for i in range(VOCAB):
        if text[i] is None:
            while "<｜place▁holder▁no▁%d｜>" % number in taken:
                number += 1
            put("<｜place▁holder▁no▁%d｜>" % number, i, CONTROL)
    return text, kind


def string(s):
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def entry(key, vtype, payload):
    return string(key) + struct.pack("<I", vtype) + payload


def array(elem, count, payload):
    return struct.pack("<IQ", elem, count) + payload


def build(text, kind, merges, name):
    kv = [
        entry("general.architecture", STRING, string("deepseek4")),
        entry("general.name", STRING, string(name)),
        entry("deepseek4.vocab_size", U32, struct.pack("<I", VOCAB)),
        entry("tokenizer.ggml.model", STRING, string("gpt2")),
        entry("tokenizer.ggml.pre", STRING, string("joyai-llm")),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, len(text), b"".join(map(string, text)))),
        entry("tokenizer.ggml.token_type", ARRAY, array(I32, len(kind), struct.pack("<%di" % len(kind), *kind))),
        entry("tokenizer.ggml.merges", ARRAY, array(STRING, len(merges), b"".join(map(string, merges)))),
        entry("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", V4_IDS[BOS])),
        entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", V4_IDS[EOS])),
        entry("tokenizer.ggml.padding_token_id", U32, struct.pack("<I", V4_IDS[PAD])),
        entry("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
        entry("tokenizer.ggml.add_eos_token", BOOL, b"\0"),
    ]
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(kv)) + b"".join(kv)
    return data + b"\0" * (-len(data) % 32)


def main():
    if len(sys.argv) != 3:
        fail("usage: vocab_gguf.py IN.json OUT.gguf")
    vocab, merges, added = read_tokenizer(sys.argv[1])
    text, kind = place(vocab, added)
    data = build(text, kind, merges, "DeepSeek-V4 vocabulary")
    part = "%s.%d.part" % (sys.argv[2], os.getpid())
    try:
        with open(part, "wb") as f:
            f.write(data)
        os.replace(part, sys.argv[2])
    except OSError as err:
        fail("cannot write %s: %s" % (sys.argv[2], err))


if __name__ == "__main__":
    main()
