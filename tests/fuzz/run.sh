#!/bin/sh
# Fuzzes the GGUF reader: tests/fuzz/run.sh [SECONDS [WORKDIR]], from the repository root. Needs clang with libFuzzer.
set -eu
seconds=${1:-120}
work=${2:-build/fuzz}
flags="-std=gnu11 -O1 -g -ffp-contract=off -Isrc -Wall -Wextra -Werror"
sources="tests/file/util_gguf.c src/file/gguf*.c src/file/quant*.c src/base/err.c src/base/hash.c src/base/num.c"
if ! command -v clang >/dev/null; then
    echo "skipped (no clang)"
    exit 0
fi
mkdir -p "$work/corpus" "$work/seeds"
clang $flags -o "$work/gguf_seeds" tests/fuzz/gguf_seeds.c $sources -lm
"$work/gguf_seeds" "$work/seeds"
clang $flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o "$work/fuzz_gguf" \
    tests/fuzz/fuzz_gguf.c $sources -lm
exec "$work/fuzz_gguf" -max_total_time="$seconds" -max_len=4096 -timeout=5 -malloc_limit_mb=256 -print_final_stats=1 \
    -artifact_prefix="$work/" "$work/corpus" "$work/seeds"
