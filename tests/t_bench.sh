#!/bin/bash
# ds4-bench: its tables and what it refuses. Prints "ok NAME", "not ok NAME", "skip NAME".
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C.UTF-8
bench=${DS4_BENCH_BIN:-./ds4-bench}
model=${DS4_TEST_MODEL:-mini/ds4-mini.gguf}
support=${DS4_DSPARK_SUPPORT:-mini/ds4-mini-dspark.gguf}
text=tests/data/prose.txt
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
unset DS4_DSPARK_STATS DS4_THREADS

ok() { echo "ok $1"; }
bad() {
    echo "not ok $1"
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@"
}

says() { # says NAME STATUS PATTERN ARGS...: exit status, and stderr is one line that matches the regular expression
    local name=$1 status=$2 pattern=$3 rc
    shift 3
    "$bench" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    rc=$?
    if [ $rc -eq "$status" ] && grep -qE -- "$pattern" "$dir/err" && [ "$(wc -l <"$dir/err")" -eq 1 ]; then
        ok "$name"
    else
        bad "$name" "exit status $rc, expected $status and one line '$pattern' in:" "$(cat "$dir/err")"
    fi
}

# ---- without a model ----
[ -x "$bench" ] || { bad "there is a program to test: $bench"; exit 1; }
says "an unknown option is named with the nearest" 2 'unknown option --ctx-strat; did you mean --ctx-start\?' \
    --ctx-strat 1
says "a wrong number says what was expected" 2 "--gen-tokens is '1', expected a whole number from 2" --gen-tokens 1
says "a step that does not grow is refused" 2 "--step-mul is '1', expected a number from 1.001" --step-mul 1
says "without a model it says what to give" 2 'no model: give -m FILE'
says "without a text it says what to give" 2 'no text: give --prompt-file FILE' -m x
says "drafting without a drafter is refused" 2 'dspark requires --mtp FILE' -m x --prompt-file y --dspark-confidence 0.5
says "a drafter without use is refused" 2 'mtp goes with --dspark or --cycle' -m x --prompt-file y --mtp z
says "contexts that shrink are refused" 2 'ctx-max is 4, expected at least --ctx-start, which is 8' \
    -m x --prompt-file y --ctx-start 8 --ctx-max 4
says "two kinds of steps are refused" 2 'only one of --step-incr and --step-mul' \
    -m x --prompt-file y --step-incr 8 --step-mul 2
says "two tables at once are refused" 2 'two tables' -m x --prompt-file y --mtp z --dspark --cycle
says "the table does not replace what is read" 2 'csv would replace \./README.md' \
    -m ./README.md --prompt-file y --csv ././README.md

says "a synthetic model goes without files" 2 '--synthetic goes without -m' --synthetic flash-q2 -m x
says "options of a synthetic model need one" 2 'go with --synthetic NAME' -m x --prompt-file y --layers 4
says "an unknown synthetic model is named" 1 "synthetic model 'x', expected flash-q2" --synthetic x --ctx-start 8
[ "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" -gt 150000000 ] ||
    says "a synthetic model does not swap a CPU to death" 1 'takes 164.6 GB, this machine has .*use fewer --layers' \
        --synthetic flash-q4 --cpu --ctx-start 8
says "drafting of a synthetic model needs its drafter" 2 'requires --synthetic-drafter' --synthetic flash-q2 --dspark

"$bench" --help >"$dir/help" || bad "help"
lost=
for o in -m --mtp --ctx-start --ctx-max --step-incr --step-mul --gen-tokens --prompt-file --csv --backend --cpu --cuda \
    --threads --act --dspark --dspark-confidence --cycle --repeat --synthetic --layers --synthetic-drafter \
    --synthetic-skew --place --accept; do
    grep -qE -- "^  ([^ ].*)?$o([, ]|$)" "$dir/help" || lost="$lost $o"
done
[ -z "$lost" ] && ok "the help text has every documented option" ||
    bad "the help text has every documented option" "$lost"

# ---- made-up weights ----
columns='ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,gb_per_s,percent_of_copy'
rows() { grep -v '^#' "$dir/out" | tail -n +2; } # the table without comments and heading
made() { "$bench" --synthetic tiny-q2 --cpu "$@" >"$dir/out" 2>"$dir/err" </dev/null; }

made --synthetic-drafter --dspark-confidence 0 --ctx-start 40 --ctx-max 80 --step-incr 40 --gen-tokens 6
[ $? -eq 0 ] && grep -q '^# ds4-bench .*: synthetic tiny-q2 of 8 layers, skew 0, ' "$dir/out" &&
    grep -q '^# distinct experts per layer of 1, 2, 4, 6, 8, 16 rows: 4\.0 ' "$dir/out" &&
    rows | awk -F, '!($3 > 0 && $5 > 0 && $10 > 0) { exit 1 } END { exit NR != 2 }' &&
    ok "--synthetic: a sweep, drafted too, without any file" ||
    bad "--synthetic: a sweep, drafted too, without any file" "$(cat "$dir/out" "$dir/err")"
made --layers 4 --place --ctx-start 1000 --ctx-max 3000 --step-incr 2000 --gen-tokens 70
[ $? -eq 0 ] && grep -q 'of 4 layers' "$dir/out" && grep -q '^# contexts were not read' "$dir/out" &&
    [ "$(rows | cut -d, -f1-4 | tr '\n' ' ')" = "1000,0,0.00,70 3000,0,0.00,70 " ] && [ ! -s "$dir/err" ] &&
    ok "--place: long contexts without reading" || bad "--place: long contexts without reading" \
    "$(cat "$dir/out" "$dir/err")"

# Scripted acceptance must be visible in every line.
made --synthetic-drafter --place --ctx-start 300 --gen-tokens 31 --dspark-confidence 0 --accept 2
[ $? -eq 0 ] && grep -q '^# scripted acceptance 2: ' "$dir/out" &&
    grep -qx "$columns,plain_tps,scripted_tps,scripted_ratio,scripted_length,label" "$dir/out" &&
    [ "$(rows | cut -d, -f12,13)" = "3.000,scripted acceptance of 2.00" ] &&
    ok "--accept: what was prescribed is accepted, and said" ||
    bad "--accept: what was prescribed is accepted, and said" "$(cat "$dir/out" "$dir/err")"
made --synthetic-drafter --place --ctx-start 300 --gen-tokens 40 --accept 3,1
[ $? -eq 0 ] && [ "$(rows | cut -d, -f13)" = "scripted acceptance of 2.00" ] &&
    ok "--accept: a list, with the scheduler" ||
    bad "--accept: a list, with the scheduler" "$(cat "$dir/out" "$dir/err")"
for wrong in x 6 1,9 ,; do
    says "--accept '$wrong' is refused" 1 "accept is '$wrong', expected a number from 0 to 5" \
        --synthetic tiny-q2 --synthetic-drafter --cpu --ctx-start 8 --accept $wrong
done

# ---- with a model ----
if [ ! -e "$model" ] || [ ! -e "$support" ]; then
    [ "${DS4_DSPARK_FIXTURE_ALLOW_SKIP:-0}" = 1 ] && echo "skip the rest: skipped (no $model)" && exit 0
    bad "the small model is there" "$model and $support are needed"
    exit 1
fi
says "a missing model file is named" 1 '/nowhere/m.gguf: ' -m /nowhere/m.gguf --prompt-file "$text"
says "a missing text is named" 1 '/nowhere/t: ' -m "$model" --prompt-file /nowhere/t --ctx-start 8
says "an empty text is refused" 1 'holds no text' -m "$model" --prompt-file /dev/null --ctx-start 8
says "a table that cannot be written shows at once" 1 '/nowhere/t.csv' \
    -m "$model" --prompt-file "$text" --csv /nowhere/t.csv
says "a context beyond the model's has both numbers" 1 'context of [0-9]+ tokens exceeds .* maximum of [0-9]+' \
    -m "$model" --prompt-file "$text" --ctx-start 200000000

run() { "$bench" -m "$model" --cpu --prompt-file "$text" "$@" >"$dir/out" 2>"$dir/err" </dev/null; }

run --ctx-start 40 --ctx-max 100 --step-incr 30 --gen-tokens 4 --csv "$dir/t.csv"
[ "$(grep -v '^#' "$dir/out" | head -n 1)" = "$columns" ] && ok "the columns have the documented names" ||
    bad "the columns have the documented names" "$(cat "$dir/out" "$dir/err")"
[ "$(rows | cut -d, -f1,2,4 | tr '\n' ' ')" = "40,40,4 70,30,4 100,30,4 " ] &&
    ok "contexts grow by --step-incr and only what is new is fed" ||
    bad "contexts grow by --step-incr and only what is new is fed" "$(cat "$dir/out" "$dir/err")"
rows | awk -F, '{ for (i = 1; i <= 8; i++) if (!($i > 0)) exit 1; if (NF != 8 || $6 < kv) exit 1; kv = $6 }' &&
    ok "every figure is positive and the KV rows do not shrink" ||
    bad "every figure is positive and the KV rows do not shrink" "$(cat "$dir/out")"
grep -q '^# copy bandwidth: .* GB/s, read and written, memcpy' "$dir/out" &&
    ok "a comment says what copy was measured" ||
    bad "a comment says what copy was measured" "$(cat "$dir/out")"
cmp -s "$dir/out" "$dir/t.csv" && ok "--csv writes the same table" || bad "--csv writes the same table"
run --ctx-start 8 --ctx-max 40 --step-mul 2 --gen-tokens 2 --repeat 2
[ "$(rows | cut -d, -f1 | tr '\n' ' ')" = "8 16 32 " ] && grep -q 'sweep 2 of 2: context 32' "$dir/err" &&
    ok "contexts grow by --step-mul, medians of --repeat sweeps" ||
    bad "contexts grow by --step-mul, medians of --repeat sweeps" "$(cat "$dir/out" "$dir/err")"

printf 'Once upon a time' >"$dir/short"
"$bench" -m "$model" --prompt-file "$dir/short" --ctx-start 50 --gen-tokens 2 >"$dir/out" 2>"$dir/err"
[ $? -eq 0 ] && grep -q 'has [0-9]* tokens: repeated' "$dir/err" && ok "repeating the text is said" ||
    bad "repeating the text is said" "$(cat "$dir/err")"

# Drafted and plain on the same context; the long one has to feed the text again.
for how in "--dspark" "--dspark-confidence 0"; do
    # shellcheck disable=SC2086
    run --mtp "$support" $how --ctx-start 64 --ctx-max 128 --step-incr 64 --gen-tokens 24
    rc=$?
    [ $rc -eq 0 ] && grep -qx "$columns,plain_tps,dspark_tps,ratio,acceptance_length" "$dir/out" &&
        rows | awk -F, '$9 != $5 || !($10 > 0 && $11 > 0 && $12 >= 1) { exit 1 } END { exit NR != 2 }' &&
        ok "$how: the same tokens, and a ratio" ||
        bad "$how: the same tokens, and a ratio" "exit status $rc" "$(cat "$dir/out" "$dir/err")"
done
rows | awk -F, '!($12 > 1) { exit 1 }' && ok "drafts are accepted" || bad "drafts are accepted" "$(cat "$dir/out")"
run --mtp "$support" --dspark-confidence 0 --ctx-start 20 --ctx-max 40 --step-incr 20 --gen-tokens 90
[ $? -eq 0 ] && [ "$(grep -c 'the text is fed again' "$dir/err")" -eq 1 ] &&
    ok "a text that cannot be rewound is fed again, and that is said once" ||
    bad "a text that cannot be rewound is fed again, and that is said once" "$(cat "$dir/out" "$dir/err")"

run --mtp "$support" --cycle --ctx-start 30 --repeat 2
got=$(rows | cut -d, -f1-3 | tr '\n' ' ')
want=$(for n in $(seq 16); do printf '30,forward,%d ' "$n"; done)
[ "${got#"$want"}" != "$got" ] && [[ $got =~ 30,proposal,[0-9]+\ 30,prop_setup,.*30,prop_confidence, ]] &&
    [ "$(rows | head -n 1 | cut -d, -f5)" = 1.000 ] && ok "--cycle: 1 to 16 rows, the proposal and its parts" ||
    bad "--cycle: 1 to 16 rows, the proposal and its parts" "$(cat "$dir/out" "$dir/err")"
grep -qx 'ctx_tokens,item,rows,ms,ratio,byte_ratio,over_bytes,experts' "$dir/out" && rows | awk -F, '
    NF != 8 { exit 1 }
    $2 == "forward" { if (!($6 >= last && $7 > 0 && $8 >= seen)) exit 1; last = $6; seen = $8 }
    $2 == "cycle" { all = $4 } $2 == "cycle_propose" || $2 == "cycle_verify" { parts += $4 }
    END { exit !(last > 1 && seen > 4 && parts > 0.5 * all && parts < 1.5 * all) }' &&
    grep -q '^# context 30: a cycle reads back [0-9]* bytes' "$dir/out" &&
    ok "--cycle: bytes and experts of many rows, whole cycles" ||
    bad "--cycle: bytes and experts of many rows, whole cycles" "$(cat "$dir/out" "$dir/err")"
run --cycle --ctx-start 30 --repeat 1
[ $? -eq 0 ] && [ "$(rows | wc -l)" -eq 16 ] && ok "--cycle without a drafter times forwards alone" ||
    bad "--cycle without a drafter times forwards alone" "$(cat "$dir/out" "$dir/err")"

# ---- the plot ----
"$bench" --synthetic tiny-q2 --synthetic-drafter --layers 3 --cpu --place --ctx-start 20 --gen-tokens 4 --accept 1 \
    >"$dir/s.csv" 2>"$dir/err"
python3 tools/plot_bench.py -o "$dir/p.svg" "$dir/t.csv" "$dir/s.csv" 2>"$dir/err"
rc=$?
if grep -q 'matplotlib is missing' "$dir/err"; then
    [ $rc -eq 1 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && echo "skip the plot: skipped (no matplotlib)" ||
        bad "the plot" "$(cat "$dir/err")"
else
    [ $rc -eq 0 ] && grep -q '<svg' "$dir/p.svg" && ok "the plot" || bad "the plot" "$(cat "$dir/err")"
fi
echo "a,b" >"$dir/x.csv"
python3 tools/plot_bench.py -o "$dir/p.svg" "$dir/x.csv" 2>"$dir/err"
[ $? -eq 1 ] && grep -q 'x.csv: holds no row' "$dir/err" && ok "a plot of no table is refused" ||
    bad "a plot of no table is refused" "$(cat "$dir/err")"
