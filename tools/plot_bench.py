"""Plots tables of ds4-bench: tokens per second against context, as SVG.

    python3 tools/plot_bench.py [-o bench.svg] a.csv [b.csv ...]

Each table gives a curve of prefill (unless contexts were put in place) and one of generation; with --dspark the
drafted one too, with --accept the one of scripted acceptance, which is named so.
"""
import argparse
import csv
import os
import sys

NEEDED = ("ctx_tokens", "prefill_tps", "gen_tps")
DRAFTED = {"dspark_tps": "DSpark", "scripted_tps": "scripted acceptance"}


def fail(text):
    sys.exit(f"plot_bench: {text}")


def read_table(path):
    """Columns by name, as numbers. Lines with # say where the figures come from."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            rows = list(csv.DictReader(line for line in f if not line.startswith("#")))
    except (OSError, UnicodeDecodeError) as e:
        fail(f"{path}: {e}")
    if not rows:
        fail(f"{path}: holds no row")
    missing = [c for c in NEEDED if c not in rows[0]]
    if missing:
        fail(f"{path}: no column {missing[0]}; expected the table of a ds4-bench sweep")
    names = [c for c in (*NEEDED, *DRAFTED) if c in rows[0]]
    try:
        return {c: [float(r[c]) for r in rows] for c in names}
    except (TypeError, ValueError) as e:
        fail(f"{path}: {e}")


def main():
    p = argparse.ArgumentParser(description="Plots tables of ds4-bench as SVG.")
    p.add_argument("-o", "--out", default="bench.svg", help="SVG file to write (default bench.svg)")
    p.add_argument("csv", nargs="+", help="tables of ds4-bench")
    a = p.parse_args()
    tables = [(os.path.splitext(os.path.basename(path))[0], read_table(path)) for path in a.csv]
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is missing: install it (Debian, Ubuntu: python3-matplotlib)")
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (prefill, gen) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for name, t in tables:
        if any(t["prefill_tps"]):
            prefill.plot(t["ctx_tokens"], t["prefill_tps"], marker="o", label=name)
        line, = gen.plot(t["ctx_tokens"], t["gen_tps"], marker="o", label=name)
        for column, what in DRAFTED.items():
            if column in t:
                gen.plot(t["ctx_tokens"], t[column], marker="s", linestyle="--", color=line.get_color(),
                         label=f"{name}, {what}")
    for axes, title in ((prefill, "prefill"), (gen, "generation")):
        axes.set(title=title, xlabel="context (tokens)", ylabel="tokens per second")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.tight_layout()
    try:
        figure.savefig(a.out, format="svg")
    except OSError as e:
        fail(str(e))


if __name__ == "__main__":
    main()
