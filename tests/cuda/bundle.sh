#!/bin/bash
# Packs GPU tests and the libraries that they need beside libc, for a machine with a GPU but without these libraries:
#
#   tests/cuda/bundle.sh DIR PROGRAM...      then, there: DIR/run.sh
set -e
dir=$1
shift
rm -rf "$dir"
mkdir -p "$dir/tests" "$dir/lib"
cp tests/run.sh "$dir/tests/"
for program; do
    room=$(basename "$(dirname "$program")")
    mkdir -p "$dir/tests/$room"
    strip -o "$dir/tests/$room/$(basename "$program")" "$program"
    ldd "$program" | awk '/=> \// {print $3}' | grep -E '/lib(cmocka|pcre2|jansson|edit|bsd|md|tinfo)[-.]' |
        xargs -r cp -uL -t "$dir/lib"
done
cat >"$dir/run.sh" <<'END'
#!/bin/bash
# Runs the tests on the GPU, one program at a time; with an argument also times the operations.
cd "$(dirname "$0")" || exit 2
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DS4_TEST_BACKEND=cuda DS4_TEST_JOBS=1
tests/run.sh tests/*/t_*
status=$?
[ $# -eq 0 ] || tests/cuda/bench_ops
exit $status
END
chmod +x "$dir/run.sh"
du -sh "$dir"
