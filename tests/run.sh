#!/bin/bash
# Runs test programs (cmocka) and test scripts (*.sh), prints failures in full, one line per program, and closes with
# "N passed, N failed[, N skipped]". Exit status: 1 if anything failed, crashed, ran too long, or nothing ran at all.
#
#   tests/run.sh PROGRAM|SCRIPT...
#
# A script counts its checks with lines "ok NAME", "not ok NAME", "skip NAME"; one that prints none counts as one test
# by its exit status (77: skipped). Scripts run one after the other, then the programs, several at once. Environment:
#   DS4_TEST_TIMEOUT   seconds per program (900)
#   DS4_TEST_JOBS      programs at once (processors, at most 4)
#   DS4_TEST_VERBOSE   1 prints everything
#   DS4_TEST_WRAPPER   a command put before each program
cd "$(dirname "$0")/.." || exit 2
limit=${DS4_TEST_TIMEOUT:-900}
jobs=${DS4_TEST_JOBS:-$(getconf _NPROCESSORS_ONLN)}
[ "$jobs" -le 4 ] || jobs=4

count() { grep -acE "$1" "$log"; }

count_cmocka() {
    # Behind the summary line failed tests are listed once more.
    sed -i '/^\[==========\].* run\.$/,/^\[==========\].*Running/{/^\[  \(FAILED\|SKIPPED\|ERROR\)/d}' "$log"
    ok=$(count '^\[ +OK \]')
    skip=$(count '^\[  SKIPPED \]')
    bad=$(count '^\[  FAILED  \]')
}

count_script() {
    ok=$(count '^ok ')
    skip=$(count '^skip ')
    bad=$(count '^not ok ')
    [ $((ok + skip + bad)) -gt 0 ] && return
    case $1 in
        0) ok=1 ;;
        77) skip=1 ;;
        *) bad=1 ;;
    esac
}

# Runs one test with its output in $log and prints what its user should see; the last line has the counts.
run_one() {
    local start rc word reasons
    start=$(date +%s)
    case $1 in
        *.sh) timeout -k 10 "$limit" bash "$1" >"$log" 2>&1 </dev/null; rc=$?; count_script $rc ;;
        *) timeout -k 10 "$limit" ${DS4_TEST_WRAPPER:-} "$1" >"$log" 2>&1 </dev/null; rc=$?; count_cmocka ;;
    esac
    [ $rc -eq 124 ] && echo "no end after $limit seconds" >>"$log"
    [ $rc -ne 0 ] && [ $rc -ne 77 ] && [ "$bad" -eq 0 ] && bad=1
    [ $((ok + skip + bad)) -eq 0 ] && bad=1 && echo "ran no test" >>"$log"
    reasons=$(grep -aoE 'skipped \([^)]*\)' "$log" | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd';')
    # A test that says that it skipped but returned normally has not passed.
    [ "$skip" -eq 0 ] && [ -n "$reasons" ] && skip=1 && [ "$ok" -gt 0 ] && ok=$((ok - 1))
    word="$ok passed"
    [ "$bad" -gt 0 ] && word="$word, $bad FAILED (exit status $rc)"
    [ "$skip" -gt 0 ] && word="$word, $skip skipped"
    [ -n "$reasons" ] && word="$word: $reasons"
    [ "$bad" -gt 0 ] || [ "${DS4_TEST_VERBOSE:-0}" = 1 ] && { echo "---- $1"; cat "$log"; echo "----"; }
    echo "$1: $word ($(($(date +%s) - start)) s)"
    echo "$ok $bad $skip" >"$log.counts"
}

if [ "${1:-}" = --one ]; then # tests/run.sh --one LOG TEST
    log=$2
    exec 2>/dev/null # "Aborted" of the shell; the test's own output is in the log
    run_one "$3" >"$log.shown"
    cat "$log.shown" # at once, so that tests that run together do not mix
    exit 0
fi

dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
n=0 scripts=() programs=()
for t; do
    n=$((n + 1))
    case $t in
        *.sh) scripts+=("$dir/$n" "$t") ;;
        *) programs+=("$dir/$n" "$t") ;;
    esac
done
[ ${#scripts[@]} -gt 0 ] && printf '%s\0' "${scripts[@]}" | xargs -0 -n 2 tests/run.sh --one
[ ${#programs[@]} -gt 0 ] && printf '%s\0' "${programs[@]}" | xargs -0 -n 2 -P "$jobs" tests/run.sh --one

passed=0 failed=0 skipped=0 n=0 failures=
for t; do
    n=$((n + 1))
    read -r ok bad skip <"$dir/$n.counts" || { ok=0 bad=1 skip=0; }
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    [ "$bad" -gt 0 ] && failures="$failures $t"
done
[ $# -eq 0 ] && echo "tests/run.sh: nothing to run" && failed=1
[ -n "$failures" ] && printf 'failed:%s\n' "$failures"
tail=
[ $skipped -gt 0 ] && tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ $failed -eq 0 ]
