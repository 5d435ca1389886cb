"""Corpus, tokenizer and batches.

usage: data.py SOURCES OUT    builds OUT/tokenizer.json and OUT/corpus.npz from the folder SOURCES: the unpacked
Debian packages and sources that README.md lists. `Batches` packs the result into rows for training.
"""

import gzip
import json
import os
import random
import re
import subprocess
import sys

import numpy as np

VOCAB = 4096
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
TAIL = [
    "<｜noise｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜extracted_url｜>",
]
ID = {t: VOCAB - len(TAIL) + i for i, t in enumerate(TAIL)} | {BOS: 0, EOS: 1, PAD: 2}
LETTERS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# ---------------------------------------------------------------- sources


def bible():
    """The King James text, one document per chapter, from the `bible` program of Debian."""
    out = subprocess.run(["bible", "-l", "79", "gen1:1-rev22:21"], input="", capture_output=True, text=True).stdout
    chapters = re.split(r"\n(?=(?:[1-3] )?[A-Z][A-Za-z ]+ \d+\n\n)", out)
    return [c.strip() for c in chapters if len(c) > 200]


def files(root, exts, skip=(), biggest=400_000):
    for d, _, names in sorted(os.walk(root)):
        for n in sorted(names):
            path = os.path.join(d, n)
            if n.endswith(exts) and not any(s in path for s in skip) and os.path.getsize(path) < biggest:
                try:
                    text = open(path, encoding="utf-8").read()
                except UnicodeDecodeError:
                    continue
                if len(text) > 300:
                    yield text


def glosses(src):
    """WordNet definitions as (word, part of speech, gloss)."""
    for pos in ("noun", "verb", "adj"):
        for line in open(f"{src}/usr/share/wordnet/data.{pos}", encoding="utf-8"):
            if line.startswith(" "):
                continue
            word = line.split()[4].replace("_", " ").split("(")[0]
            gloss = line.split("| ", 1)[1].strip().split('; "')[0].split(";")[0]
            if word.islower() and word.isascii() and 15 < len(gloss) < 140 and gloss.isascii():
                yield word, pos, gloss


def define(r, word, pos, gloss):
    if pos == "verb":
        return f"What does it mean to {word}?", None, f"To {word} means to {gloss}."
    if pos == "adj":
        return f'What does "{word}" mean?', None, f'"{word[0].upper()}{word[1:]}" means {gloss}.'
    q = r.choice(["Define {}.", "What is the meaning of {}?", "What does the word {} mean?"]).format(word)
    return q, None, f"{word[0].upper()}{word[1:]} means {gloss}."


def raw_documents(src):
    zcat = lambda p: gzip.open(f"{src}/usr/share/{p}").read().decode("utf-8", "replace")
    prose = bible()
    prose += [zcat("state/us-constitution.gz"), zcat("state/us-declaration.gz")]
    jargon = zcat("doc/jargon-text/jargon.txt.gz")
    jargon = re.sub(r"(?m)^   ", "", jargon[len(jargon) // 10 :])
    prose += [jargon[i : i + 20000] for i in range(0, len(jargon), 20000)]
    c = list(files(f"{src}/sqlite3-3.40.1/src", (".c", ".h"))) + list(
        files(f"{src}/sqlite3-3.40.1/ext", (".c", ".h"))
    )
    c += list(files(f"{src}/lua-5.4.4", (".c", ".h"))) + list(
        files(f"{src}/musl-1.2.3/src", (".c",), biggest=60_000)
    )
    c += list(files(f"{src}/usr/include/stb", (".h",), biggest=150_000))
    py = list(
        files(
            f"{src}/Python-3.11.2/Lib",
            (".py",),
            skip=("/test", "lib2to3", "/idlelib", "pydoc_data", "/encodings", "distutils"),
            biggest=150_000,
        )
    )
    return prose, c, py


# ---------------------------------------------------------------- tokenizer


def pre_tokenizer(digits):
    from tokenizers import Regex, pre_tokenizers as P

    return P.Sequence(
        [
            P.Split(Regex(digits), "isolated"),
            P.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
            P.Split(Regex(LETTERS), "isolated"),
            P.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(texts, path):
    """Byte-level BPE. Digits are kept apart while training, so that a number is always a row of single digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer(r"\p{N}")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(TAIL),
        special_tokens=[BOS, EOS, PAD],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    t.train_from_iterator(texts, trainer)
    t.pre_tokenizer = pre_tokenizer(r"\p{N}{1,3}")
    t.decoder = decoders.ByteLevel()
    t.add_tokens([AddedToken(x, normalized=False) for x in TAIL])
    assert t.get_vocab_size() == VOCAB and all(t.token_to_id(k) == v for k, v in ID.items())
    t.save(path)
    return t


class Encoder:
    """Text is encoded without added tokens, so that only the template writes role markers."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        j = json.load(open(path))
        j["added_tokens"] = []
        self.t = Tokenizer.from_str(json.dumps(j))
        self.full = Tokenizer.from_file(path)

    def text(self, s):
        return self.t.encode(s, add_special_tokens=False).ids if s else []

    def prompt(self, user, system="", think=False):
        return (
            [0]
            + self.text(system)
            + [ID["<｜User｜>"]]
            + self.text(user)
            + [ID["<｜Assistant｜>"], ID["<think>" if think else "</think>"]]
        )

    def chat(self, c):
        system, turns = c
        ids = [0] + self.text(system)
        for i, (q, thought, a) in enumerate(turns):
            ids += [ID["<｜User｜>"]] + self.text(q) + [ID["<｜Assistant｜>"]]
            if thought and i == len(turns) - 1:
                ids += [ID["<think>"]] + self.text(thought)
            ids += [ID["</think>"]] + self.text(a) + [1]
        return ids

    def decode(self, ids):
        return self.full.decode(ids, skip_special_tokens=False)


# ---------------------------------------------------------------- build


def build(src, out, chats_n):
    import chats

    r = random.Random(1)
    prose, c, py = raw_documents(src)
    made = {
        "chat": [chats.chat(r) for _ in range(chats_n)],
        "times": [
            ("", [(q, None, a)]) for x in range(2, 100) for y in range(2, 100) for q, a, _ in [chats.times(r, x, y)]
        ],
        "define": [("", [define(r, *g)]) for g in glosses(src)],
    }
    r.shuffle(made["define"])
    made["define"] = made["define"][: max(chats_n // 3, 100)]
    size = lambda docs: sum(map(len, docs)) / 1e6
    print(
        f"prose {len(prose)} documents {size(prose):.1f} MB, C {len(c)} {size(c):.1f} MB, Python {len(py)}"
        f" {size(py):.1f} MB,",
        {k: len(v) for k, v in made.items()},
        flush=True,
    )
    flat = [x for v in made.values() for s, turns in v for q, t, a in turns for x in (s, q, t or "", a)]
    some = lambda docs, n: r.sample(docs, min(len(docs), n))
    path = f"{out}/tokenizer.json"
    os.makedirs(out, exist_ok=True)
    train_tokenizer(
        [t[:20000] for t in some(prose, 900) + some(c, 150) + some(py, 120)] + some(flat, 120_000), path
    )
    e = Encoder(path)
    groups = {
        "prose": [x.ids for x in e.t.encode_batch(prose)],
        "c": [x.ids for x in e.t.encode_batch(c)],
        "py": [x.ids for x in e.t.encode_batch(py)],
    }
    groups |= {k: [e.chat(x) for x in v] for k, v in made.items()}
    pack = {}
    for k, docs in groups.items():
        pack[k] = np.concatenate([np.array(d, np.uint16) for d in docs])
        pack[k + "_len"] = np.array([len(d) for d in docs], np.uint32)
        print(k, len(docs), "documents", len(pack[k]), "tokens", flush=True)
    np.savez_compressed(f"{out}/corpus.npz", **pack)


# ---------------------------------------------------------------- batches


class Batches:
    """Endless rows of `length` tokens: ids and document numbers, aligned as model.py wants them.

    A row holds either pieces of prose or source files, or many conversations."""

    RAW = {"prose": 0.36, "c": 0.36, "py": 0.28}
    CHAT = {"chat": 0.82, "times": 0.08, "define": 0.10}

    def __init__(self, path, length, seed, raw_share=0.4):
        z = np.load(path)
        self.docs = {
            k: (z[k], np.concatenate([[0], np.cumsum(z[k + "_len"].astype(np.int64))]))
            for k in {**self.RAW, **self.CHAT}
        }
        self.length, self.raw_share, self.r = length, raw_share, np.random.default_rng(seed)

    def draw(self, weights):
        k = self.r.choice(list(weights), p=list(weights.values()))
        ids, at = self.docs[k]
        i = self.r.integers(len(at) - 1)
        return ids[at[i] : at[i + 1]]

    def raw_row(self, ids, doc):
        pos, n = 0, 0
        while pos < self.length:
            want = (
                self.length - pos
                if self.r.random() < 0.5
                else min(self.length - pos, 128 * int(self.r.integers(1, 9)))
            )
            text = self.draw(self.RAW)
            start = int(self.r.integers(max(1, len(text) - want + 2)))
            piece = np.concatenate([[0], text[start : start + want - 1]])
            if start + want - 1 > len(text) and len(piece) < want:
                piece = np.concatenate([piece, [1]])
            if len(piece) < 128:
                continue
            ids[pos : pos + len(piece)], doc[pos : pos + len(piece)] = piece, n
            pos, n = -(-(pos + len(piece)) // 128) * 128, n + 1

    def chat_row(self, ids, doc):
        pos, n, fails = 0, 0, 0
        later = []
        while fails < 4:
            d = later.pop() if later and self.r.random() < 0.5 else self.draw(self.CHAT)
            start = -(-pos // 4) * 4 if len(d) < 128 else -(-pos // 128) * 128
            gap = start - pos
            if gap > 40 and len(later) < 8 and fails < 3:
                later.append(d)
                fails += 0.25
                continue
            if start + len(d) > self.length:
                fails += 1
                continue
            ids[start : start + len(d)], doc[start : start + len(d)] = d, n
            pos, n = start + len(d), n + 1

    def rows(self, n):
        ids, doc = np.full((n, self.length), 2, np.int64), np.full((n, self.length), -1, np.int64)
        for i in range(n):
            (self.raw_row if self.r.random() < self.raw_share else self.chat_row)(ids[i], doc[i])
        return ids, doc


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 120_000)
