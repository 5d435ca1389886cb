#!/bin/bash
# Packs GPU tests, programs (BUILD/bin) and the libraries that they need beside libc, for a machine with a GPU but
# without these libraries and without the sources; and the folder as DIR.txz, for travelling:
#
#   tests/cuda/bundle.sh DIR PROGRAM...      then, there: DIR/run.sh
#
# Environment:
#   BUNDLE_DATA   folder of the golden data (../shared/data): adds oracle_a and oracle_c for the tests that need them
#   BUNDLE_MINI   1 adds the small model; without it run.sh takes mini/ of the folder that it is called from
set -e
dir=$1
shift
rm -rf "$dir" "$dir.txz"
mkdir -p "$dir/tests/data" "$dir/bin" "$dir/lib" "$dir/tools"
cp tests/run.sh tests/dspark_acceptance_fixture.sh "$dir/tests/"
cp tests/data/prose.txt "$dir/tests/data/"
for program; do
    room=$(basename "$(dirname "$program")") to=$dir/bin
    [ "$room" = bin ] || to=$dir/tests/$room
    mkdir -p "$to"
    strip -o "$to/$(basename "$program")" "$program"
    ldd "$program" | awk '/=> \// {print $3}' | grep -E '/lib(cmocka|pcre2|jansson|edit|bsd|md|tinfo)[-.]' |
        xargs -r cp -uL -t "$dir/lib"
done
if [ -n "${BUNDLE_DATA:-}" ]; then
    mkdir -p "$dir/data"
    cp -r "$BUNDLE_DATA/oracle_a" "$BUNDLE_DATA/oracle_c" "$dir/data/"
    chmod -R u+w "$dir/data"
    cp tools/oracle_c.py tools/gguf_out.py "$dir/tools/"
fi
if [ "${BUNDLE_MINI:-0}" = 1 ]; then
    mkdir -p "$dir/mini"
    cp mini/*.gguf mini/*.json "$dir/mini/"
fi
cat >"$dir/run.sh" <<'END'
#!/bin/bash
# Runs the tests on the GPU, one program at a time.
#
#   run.sh [bench] [slow] [NAME...]
#
# NAME: only these (t_ops, fixture), else all. bench: also times the operations. slow: also the real layer shapes, for
# which 1.6 GB of weights are made (python3 with numpy).
here=$PWD
cd "$(dirname "$0")" || exit 2
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DS4_TEST_BACKEND=cuda DS4_TEST_JOBS=1
export DS4_BIN=bin/ds4 DS4_DSPARK_FIXTURE_EXTRA="--backend cuda"
[ -d data ] && export DS4_TEST_DATA=$PWD/data
[ -e mini ] || [ ! -d "$here/mini" ] || ln -s "$here/mini" mini
[ -e mini ] || { echo "run.sh: no mini/ here nor in $here (the small model)" >&2; exit 2; }
bench=0 tests=()
for word; do
    case $word in
        bench) bench=1 ;;
        slow) export DS4_TEST_SLOW=1 ;;
        fixture) tests+=(tests/dspark_acceptance_fixture.sh) ;;
        *) tests+=(tests/*/"$word") ;;
    esac
done
[ ${#tests[@]} -gt 0 ] || tests=(tests/dspark_acceptance_fixture.sh tests/*/t_*)
tests/run.sh "${tests[@]}"
status=$?
[ $bench = 0 ] || tests/cuda/bench_ops
exit $status
END
chmod +x "$dir/run.sh"
tar -C "$(dirname "$dir")" -cf - "$(basename "$dir")" | xz -T1 -6 --lzma2=preset=6,dict=64MiB >"$dir.txz"
du -sh "$dir" "$dir.txz"
