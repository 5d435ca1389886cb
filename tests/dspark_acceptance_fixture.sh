#!/bin/bash
# DSpark acceptance: five prompts, each plain and drafted; the text must be the same byte for byte.
#
# Prints metadata lines (#), a header, one tab-separated row per case, and `# identical: N of N`. Exit status 1 if a
# text differs, a run fails, the statistics are missing or contradict themselves, drafts are missing where they were
# expected, or a file is missing.
#
# Environment                               default
#   DS4_BIN                                 ./ds4
#   DS4_DSPARK_MODEL (or DS4_TEST_MODEL)    mini/ds4-mini.gguf
#   DS4_DSPARK_SUPPORT                      mini/ds4-mini-dspark.gguf
#   DS4_DSPARK_FIXTURE_TOKENS               32
#   DS4_DSPARK_FIXTURE_CONFIDENCE           0.7; "auto": --dspark alone, the cost model may decide not to draft
#   DS4_DSPARK_FIXTURE_TEMP, _SEED          0, 1
#   DS4_DSPARK_FIXTURE_PROPOSERS            none; e.g. "random wrong short oracle": also these instead of DSpark
#   DS4_DSPARK_FIXTURE_REQUIRE_IDENTICAL    1
#   DS4_DSPARK_FIXTURE_REQUIRE_PARTIAL      0; 1: at least one case with a partly accepted draft
#   DS4_DSPARK_FIXTURE_REQUIRE_PROPOSAL_QUALITY  1 with at least 32 tokens and the default confidence, unless partial
#                                           acceptance is required
#   DS4_DSPARK_FIXTURE_C_ADD_MIN_ACCEPTED   8
#   DS4_DSPARK_FIXTURE_EXPECT_DRAFTS        "python_reverse c_add" with a fixed confidence below 1, else none
#   DS4_DSPARK_FIXTURE_EXTRA                more options for every run, e.g. "--threads 2"
#   DS4_DSPARK_FIXTURE_ALLOW_SKIP           0; 1: a missing file is a skip
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
bin=${DS4_BIN:-./ds4}
model=${DS4_DSPARK_MODEL:-${DS4_TEST_MODEL:-mini/ds4-mini.gguf}}
support=${DS4_DSPARK_SUPPORT:-mini/ds4-mini-dspark.gguf}
tokens=${DS4_DSPARK_FIXTURE_TOKENS:-32}
confidence=${DS4_DSPARK_FIXTURE_CONFIDENCE:-0.7}
identical=${DS4_DSPARK_FIXTURE_REQUIRE_IDENTICAL:-1}
partial_wanted=${DS4_DSPARK_FIXTURE_REQUIRE_PARTIAL:-0}
least=${DS4_DSPARK_FIXTURE_C_ADD_MIN_ACCEPTED:-8}
proposers=${DS4_DSPARK_FIXTURE_PROPOSERS:-}
failures=0 partials=0 rows=0 same=0

note() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

quality=0 expect=
if [ "$confidence" != auto ]; then
    awk "BEGIN{exit !($confidence < 1)}" && expect="python_reverse c_add"
    [ "$tokens" -ge 32 ] && [ "$confidence" = 0.7 ] && [ "$partial_wanted" = 0 ] && quality=1
fi
quality=${DS4_DSPARK_FIXTURE_REQUIRE_PROPOSAL_QUALITY:-$quality}
expect=${DS4_DSPARK_FIXTURE_EXPECT_DRAFTS-$expect}

for f in "$bin" "$model" "$support"; do
    [ -e "$f" ] && continue
    if [ "${DS4_DSPARK_FIXTURE_ALLOW_SKIP:-0}" = 1 ]; then
        echo "skipped ($f is missing)"
        exit 0
    fi
    echo "FAILED: $f is missing (DS4_DSPARK_FIXTURE_ALLOW_SKIP=1 makes this a skip)" >&2
    exit 1
done

dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

if [[ " ${DS4_DSPARK_FIXTURE_EXTRA:-} " == *" --backend cuda "* ]] &&
    "$bin" -m "$model" --backend cuda --tokens 1 -p x 2>&1 </dev/null | grep -q 'CUDA: no '; then
    echo "skipped (no GPU)"
    exit 0
fi

plain=("$bin" -m "$model")
drafted=("$bin" -m "$model" --dspark)
[ "$confidence" = auto ] || drafted+=(--dspark-confidence "$confidence")
drafted+=(--mtp "$support")
common=(--tokens "$tokens" --temp "${DS4_DSPARK_FIXTURE_TEMP:-0}" --seed "${DS4_DSPARK_FIXTURE_SEED:-1}" --nothink)
read -r -a extra <<<"${DS4_DSPARK_FIXTURE_EXTRA:-}"
common+=(${extra[@]+"${extra[@]}"})

# The number behind key= in the statistics; empty if there is none.
field() { sed -n "s/.*[[:space:]]$1=\(-\{0,1\}[0-9][0-9.]*\).*/\1/p" <<<" $2"; }
speed() { grep -oE 'generation: [0-9.]+ t/s' "$1" | tail -n 1 | grep -oE '[0-9.]+' | head -n 1 | grep . || echo n/a; }
size() { wc -c <"$1" | tr -d ' '; }

run() { # run OUTPUT-NAME COMMAND...
    local name=$1
    shift
    "$@" >"$dir/$name.out" 2>"$dir/$name.err" </dev/null && return 0
    note "exit status $? of: $*"
    tail -n 3 "$dir/$name.err" >&2
}

check_stats() { # check_stats ROW-ID STATS
    local id=$1 stats=$2 proposed accepted
    [ -n "$stats" ] || { note "$id: no line of statistics"; return; }
    proposed=$(field proposed "$stats") accepted=$(field accepted_draft "$stats")
    [ "$(field errors "$stats")" = 0 ] || note "$id: errors=$(field errors "$stats")"
    [ "$(field verifier_unavailable "$stats")" = 0 ] || note "$id: the verifier was not available"
    [[ $proposed =~ ^[0-9]+$ && $accepted =~ ^[0-9]+$ ]] || { note "$id: counters are no numbers"; return; }
    [ "$accepted" -le "$proposed" ] || note "$id: accepted $accepted of $proposed drafts"
    [ "$(field partial "$stats")" -gt 0 ] && partials=$((partials + 1))
    [[ $id == */* ]] && return
    [[ " $expect " == *" $id "* ]] && [ "$proposed" -eq 0 ] && note "$id: drafts were expected, proposed=0"
    [ "$id" = c_add ] && [ "$quality" = 1 ] && [ "$accepted" -lt "$least" ] &&
        note "c_add: accepted_draft=$accepted, expected at least $least"
    return 0
}

row() { # row ID COMMAND...: compares with plain.out and prints the row
    local id=$1 match=0 stats
    shift
    DS4_DSPARK_STATS=1 run other "$@"
    cmp -s "$dir/plain.out" "$dir/other.out" && match=1
    rows=$((rows + 1)) same=$((same + match))
    stats=$(sed -n 's/^ds4: DSpark stats //p' "$dir/other.err" | tail -n 1)
    printf '%s\toutput_match=%s\tbaseline_tps=%s\tdspark_tps=%s\t%s\n' \
        "$id" "$match" "$(speed "$dir/plain.err")" "$(speed "$dir/other.err")" "$stats"
    if [ "$match" = 0 ] && [ "$identical" = 1 ]; then
        note "$id: the texts differ"
        diff "$dir/plain.out" "$dir/other.out" | head -n 6 >&2
    fi
    check_stats "$id" "$stats"
}

case_rows() { # case_rows ID PROMPT
    local p
    run plain "${plain[@]}" "${common[@]}" -p "$2"
    row "$1" "${drafted[@]}" "${common[@]}" -p "$2"
    for p in $proposers; do
        row "$1/$p" "${plain[@]}" --test-proposer "$p" "${common[@]}" -p "$2"
    done
}

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain -uno 2>/dev/null | head -n 1)" ] || commit="$commit-dirty"
echo "# commit: $commit"
echo "# system: $(uname -srm), $(getconf _NPROCESSORS_ONLN) processors"
echo "# model: $model ($(size "$model") bytes), support: $support ($(size "$support") bytes)"
echo "# tokens=$tokens confidence=$confidence identical=$identical partial=$partial_wanted quality=$quality/$least"
echo "# plain: ${plain[*]} ${common[*]} -p PROMPT"
echo "# dspark: DS4_DSPARK_STATS=1 ${drafted[*]} ${common[*]} -p PROMPT"
printf 'id\toutput_match\tbaseline_tps\tdspark_tps\tdspark_stats\n'
case_rows hello 'Hello'
case_rows redis 'Explain Redis in one sentence.'
case_rows math 'What is 17 times 23?'
case_rows python_reverse 'Write a Python function that reverses a string.'
case_rows c_add 'Complete this C function: int add(int a, int b) {'
echo "# identical: $same of $rows"
[ "$partial_wanted" = 1 ] && [ "$partials" -eq 0 ] && note "no case with a partly accepted draft"
[ "$failures" -eq 0 ]
