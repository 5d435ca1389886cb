#!/bin/bash
# The command line of ds4: what its user sees. Prints "ok NAME", "not ok NAME", "skip NAME".
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C.UTF-8
ds4=${DS4_BIN:-./ds4}
model=${DS4_TEST_MODEL:-mini/ds4-mini.gguf}
support=${DS4_DSPARK_SUPPORT:-mini/ds4-mini-dspark.gguf}
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
unset DS4_DSPARK_STATS DS4_THREADS DS4_TEST_DEVICE_FAULT

ok() { echo "ok $1"; }
bad() {
    echo "not ok $1"
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@"
}

says() { # says NAME STATUS PATTERN ARGS...: exit status, and stderr matches the extended regular expression
    local name=$1 status=$2 pattern=$3 rc
    shift 3
    "$ds4" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    rc=$?
    if [ $rc -eq "$status" ] && grep -qE -- "$pattern" "$dir/err"; then
        ok "$name"
    else
        bad "$name" "exit status $rc, expected $status and '$pattern' in:" "$(cat "$dir/err")"
    fi
}

# ---- without a model ----
[ -x "$ds4" ] || { bad "there is a program to test: $ds4"; exit 1; }
says "an unknown option is named with the nearest" 2 \
    'unknown option --dspark-confidnce; did you mean --dspark-confidence\?' --dspark-confidnce 1
says "an unknown option far from all has no advice" 2 'unknown option --zebra \(' --zebra
says "a missing value says what was expected" 2 '^ds4: -p needs a value: --prompt TEXT' -p
says "a wrong number says what was expected" 2 "--tokens is 'x', expected a whole number from 1" -n x
says "a number out of range is refused" 2 "--min-p is '1.5', expected a number from 0 to 1" --min-p=1.5
says "a wrong word lists the right ones" 2 "--act is 'q9', expected one of q8\|float" --act q9
says "a nucleus of nothing is refused" 2 '--top-p is 0, expected above 0' -m x -p hello --top-p 0
for o in --save --dump-logits --dump-logprobs; do
    says "$o does not replace the model" 2 "$o would replace .*, the file of --model" \
        -m README.md -p hello $o ./README.md
done
says "two outputs in one file are refused" 2 'name the same file' -m x -p hello --save "$dir/s" --dump-logprobs "$dir/s"
says "an argument that is no option is named" 2 "unexpected argument 'hello'" hello
says "a flag takes no value" 2 "--stats takes no value" --stats=1
says "without a model it says what to give" 2 'no model: give -m FILE' -p hello
says "drafting without a drafter is refused" 2 'dspark requires --mtp FILE' -m x --dspark -p hello
says "a threshold implies drafting" 2 'dspark requires --mtp FILE' -m x --dspark-confidence 0.5 -p hello
says "a missing model file is named" 1 '^ds4: /nowhere/m.gguf: ' -m /nowhere/m.gguf -p hello
DS4_THREADS=many says "a malformed variable is named" 2 "DS4_THREADS is 'many', expected a number" -m x
DS4_DSPARK_STAT=1 says "an unknown variable is named" 0 'environment variable DS4_DSPARK_STAT ' --version

# Every option in the help text is one that the parser knows, with its aliases.
"$ds4" --help >"$dir/help" || bad "help"
lost=
for o in $(sed -n 's/^  \(-[-a-z, ]*\).*/\1/p' "$dir/help" | tr ', ' '\n\n' | grep '^-'); do
    "$ds4" "$o" >"$dir/out" 2>"$dir/err" </dev/null
    grep -q 'unknown option' "$dir/err" && lost="$lost $o"
done
[ -z "$lost" ] && ok "the parser knows every option of the help text" ||
    bad "the parser knows every option of the help text" "unknown:$lost"
lost=
for o in -m --mtp --mtp-model --dspark --dspark-confidence --dspark-strict -p --prompt-file --raw-prompt -sys --tokens \
    -n --ctx -c --temp --top-k --top-p --min-p --seed --think --think-max --nothink --effort --threads --cpu --cuda \
    --backend --inspect --protocol --stats --dump-tokens --parse-special --render --token-ids --dump-logits \
    --all-positions --dump-logprobs --logprobs-top-k --act --kv-sim --save --load; do
    grep -qE -- "^  ([^ ].*)?$o([, ]|$)" "$dir/help" || lost="$lost $o"
done
[ -z "$lost" ] && ok "the help text has every documented option" ||
    bad "the help text has every documented option" "$lost"

printf '{"messages":[{"role":"user","content":"<think>hi</think>"}],"thinking_mode":"chat"}' >"$dir/c.json"
"$ds4" --render "$dir/c.json" >"$dir/out" 2>"$dir/err"
want='<｜begin▁of▁sentence｜><｜User｜><think>hi</think><｜Assistant｜></think>'
[ "$(cat "$dir/out")" = "$want" ] && ok "a conversation is rendered" ||
    bad "a conversation is rendered" "$(cat "$dir/out" "$dir/err")"
printf '{"messages":[' >"$dir/c.json"
says "a broken conversation says where" 1 'c.json: .*byte' --render "$dir/c.json"

# ---- with a model ----
if [ ! -e "$model" ] || [ ! -e "$support" ]; then
    [ "${DS4_DSPARK_FIXTURE_ALLOW_SKIP:-0}" = 1 ] && echo "skip the rest: skipped (no $model)" && exit 0
    bad "the small model is there" "$model and $support are needed"
    exit 1
fi
answer() { "$ds4" -m "$model" --temp 0 --nothink --tokens 24 "$@" 2>"$dir/err" </dev/null; }

# A device that fails in the middle: one line that says so, an exit status, and nothing after the failure.
lost=
for k in 1 2 3 4; do
    for extra in "" "--mtp $support --dspark --dspark-confidence 0"; do
        DS4_TEST_DEVICE_FAULT=$k answer $extra -p Hello >"$dir/out"
        rc=$?
        [ $rc -eq 1 ] && [ "$(grep -c 'backend: injected fault' "$dir/err")" = 1 ] || lost="$lost $k:$rc"
    done
done
[ -z "$lost" ] && ok "a failing device ends the program with one line" ||
    bad "a failing device ends the program with one line" "wait and exit status:$lost" "$(cat "$dir/err")"

answer -p Hello >"$dir/plain"
tail -n 1 "$dir/err" >"$dir/last"
grep -qE '^ds4: prefill: [0-9.]+ t/s .*generation: [0-9.]+ t/s .*acceptance: .*logits: [0-9a-f]{16}$' "$dir/last" &&
    ok "the last line has speeds, acceptance and the hash" ||
    bad "the last line has speeds, acceptance and the hash" "$(cat "$dir/last")"
[ "$(wc -l <"$dir/err")" -eq 1 ] && [ -s "$dir/plain" ] && ok "a short run says nothing else" ||
    bad "a short run says nothing else" "$(cat "$dir/err")"

answer --mtp "$support" -p Hello >"$dir/b"
cmp -s "$dir/plain" "$dir/b" && grep -q 'without --dspark: decoding plainly' "$dir/err" &&
    ok "a drafter without --dspark decodes plainly and says so" ||
    bad "a drafter without --dspark decodes plainly and says so" "$(cat "$dir/err")"
for how in "--dspark" "--dspark-confidence 0" "--dspark-strict"; do
    # shellcheck disable=SC2086
    answer --mtp "$support" $how --stats -p Hello >"$dir/b"
    cmp -s "$dir/plain" "$dir/b" && grep -q 'DSpark enabled' "$dir/err" && grep -q '^ds4: seed: ' "$dir/err" &&
        ok "$how: the same text" ||
        bad "$how: the same text" "$(diff "$dir/plain" "$dir/b")" "$(cat "$dir/err")"
done
ln -s "$(realpath "$model")" "$dir/DeepSeek-V4-mini-0731.gguf"
ln -s "$(realpath "$support")" "$dir/DeepSeek-V4-mini-DSpark.gguf"
says "a drafter named after another release is pointed out" 0 'only one of the names .* says 0731' \
    -m "$dir/DeepSeek-V4-mini-0731.gguf" --mtp "$dir/DeepSeek-V4-mini-DSpark.gguf" --dspark -n 1 -p hello
says "a missing drafter is an error" 1 '/nowhere/d.gguf' -m "$model" --mtp /nowhere/d.gguf --dspark -p Hello
says "a missing drafter is an error even if it is not used" 1 '/nowhere/d.gguf' \
    -m "$model" --mtp /nowhere/d.gguf -p Hello
says "a trunk is no drafter" 1 'not a DSpark drafter' -m "$model" --mtp "$model" --dspark -p Hello
says "a drafter is no trunk" 1 'give it with --mtp' -m "$support" -p Hello
says "a prompt longer than the context has both numbers" 1 'the prompt has [0-9]+ tokens, the context only 2' \
    -m "$model" --ctx 2 -p Hello

same() { cmp -s "$1" "$2" && ok "$3" || bad "$3" "$(diff "$1" "$2" | head -n 6)"; }
printf 'Hello' | "$ds4" -m "$model" --temp 0 --nothink --tokens 24 --prompt-file - >"$dir/b" 2>"$dir/err"
same "$dir/plain" "$dir/b" "a prompt from standard input"
"$ds4" -m "$model" --seed 5 --nothink --tokens 24 -p Hello >"$dir/a" 2>/dev/null
"$ds4" -m "$model" --seed 5 --nothink --tokens 24 -p Hello --mtp "$support" --dspark-confidence 0 >"$dir/b" 2>/dev/null
same "$dir/a" "$dir/b" "the same seed gives the same text, drafted or not"

# Tokens: text -> ids -> the same answer.
printf '{"messages":[{"role":"user","content":"Hello"}],"thinking_mode":"chat"}' >"$dir/c.json"
"$ds4" --render "$dir/c.json" >"$dir/prompt" 2>/dev/null
"$ds4" -m "$model" --dump-tokens --parse-special --prompt-file "$dir/prompt" >"$dir/ids.json" 2>"$dir/err"
grep -qE '^\[[0-9]+(, [0-9]+)*\]$' "$dir/ids.json" && ok "--dump-tokens prints one array" ||
    bad "--dump-tokens prints one array" "$(cat "$dir/ids.json" "$dir/err")"
tr -d '[],' <"$dir/ids.json" >"$dir/ids"
answer --token-ids "$dir/ids.json" >"$dir/b"
same "$dir/plain" "$dir/b" "--render, --dump-tokens and --token-ids lead to the same answer"
answer --raw-prompt --parse-special --prompt-file "$dir/prompt" >"$dir/b"
same "$dir/plain" "$dir/b" "--raw-prompt with the rendered text is the same prompt"
echo "1 2 x" >"$dir/bad"
says "a word that is no token id is named" 1 "'x' at byte 4 is no token id" -m "$model" --token-ids "$dir/bad"
n=$("$ds4" -m "$model" --dump-tokens -p '<｜User｜>' 2>/dev/null | tr -cd , | wc -c)
[ "$n" -gt 0 ] && ok "a user's role marker stays plain text" || bad "a user's role marker stays plain text"

# Logits: the last row of all rows is the last row alone.
answer --token-ids "$dir/ids" --dump-logits "$dir/one"
answer --token-ids "$dir/ids" --dump-logits "$dir/all" --all-positions
rows=$(wc -w <"$dir/ids") bytes=$(wc -c <"$dir/one")
tail -c "$bytes" "$dir/all" >"$dir/end"
[ "$(wc -c <"$dir/all")" -eq $((rows * bytes)) ] && cmp -s "$dir/one" "$dir/end" &&
    ok "--dump-logits, last and all positions" ||
    bad "--dump-logits, last and all positions" "$(cat "$dir/err")"
answer -p Hello --tokens 3 --dump-logprobs "$dir/lp" --logprobs-top-k 2 >/dev/null
cat >"$dir/lp.py" <<'PY'
import json, sys
rows = [json.loads(s) for s in open(sys.argv[1], encoding="utf-8")]
assert 1 <= len(rows) <= 3, rows
for r in rows:
    assert len(r["top"]) == 2 and r["top"][0]["logprob"] >= r["top"][1]["logprob"], r
    assert r["id"] == r["top"][0]["id"] and r["logprob"] <= 0, r
    assert r["text"] is None or list(r["text"].encode()) == r["bytes"], r
PY
python3 "$dir/lp.py" "$dir/lp" 2>>"$dir/err" && ok "--dump-logprobs writes one line per token" ||
    bad "--dump-logprobs writes one line per token" "$(cat "$dir/err")"

# Snapshots.
answer -p Hello --tokens 4 --save "$dir/snap" >"$dir/a"
answer --load "$dir/snap" --tokens 20 >"$dir/b"
cat "$dir/a" "$dir/b" | tr -d '\n' >"$dir/ab"
tr -d '\n' <"$dir/plain" >"$dir/p"
same "$dir/p" "$dir/ab" "a saved session goes on where it ended"
echo junk >"$dir/junk"
says "a foreign file is no snapshot" 1 'junk' -m "$model" --load "$dir/junk" -p Hello
[ "$(cat "$dir/junk")" = junk ] && ok "a refused snapshot is left alone" || bad "a refused snapshot is left alone"

"$ds4" -m "$model" --mtp "$support" --inspect >"$dir/out" 2>"$dir/err"
row='^mtp/dspark: stages=[0-9]+ block=[0-9]+ markov_rank=[0-9]+ noise_token=[0-9]+ target_layers=[0-9,]+$'
grep -qE "$row" "$dir/out" &&
    grep -q '^mtp/dspark tensors: main_proj=yes main_norm=yes markov=yes confidence=yes final_head=yes$' "$dir/out" &&
    ok "--inspect describes the drafter" ||
    bad "--inspect describes the drafter" "$(cat "$dir/err")" "$(tail -n 3 "$dir/out")"

# Outputs and Ctrl-C.
says "a snapshot that cannot be written shows before the answer" 1 'nowhere/s: cannot create' \
    -m "$model" -p Hello -n 4 --save /nowhere/s
[ ! -s "$dir/out" ] || bad "nothing is answered then"
"$ds4" -m "$model" -p Hello --nothink -n 4 --dump-logprobs "$dir/closed" >&- 2>"$dir/err" </dev/null
[ $? -eq 1 ] && grep -q 'standard output is closed' "$dir/err" && [ ! -e "$dir/closed" ] &&
    ok "with standard output closed no file gets the answer" ||
    bad "with standard output closed no file gets the answer" "$(cat "$dir/err")"
interrupted() { # interrupted NAME PATTERN ARGS...: one Ctrl-C ends it with status 1, one line, and no file left behind
    local name=$1 pattern=$2 rc
    shift 2
    mkdir "$dir/int"
    # A background process of a script ignores SIGINT; python restores it.
    python3 -c 'import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
first = p.stdout.read(1) if "--ignore-eos" in sys.argv else time.sleep(2)
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=60)
sys.stderr.write(err.decode())
sys.exit(p.returncode if p.returncode >= 0 else 99)' "$ds4" -m "$model" "$@" </dev/null 2>"$dir/err"
    rc=$?
    [ $rc -eq 1 ] && grep -qE "$pattern" "$dir/err" && [ -z "$(ls -A "$dir/int")" ] && ok "$name" ||
        bad "$name" "exit status $rc" "$(cat "$dir/err")" "$(ls "$dir/int")"
    rm -rf "$dir/int"
}
interrupted "Ctrl-C in an answer is no success" 'stopped by Ctrl-C' -p Hello --ignore-eos --ctx 100000
yes 'hello world' | head -n 40000 >"$dir/long"
interrupted "Ctrl-C in a long prompt" 'cancelled after' --prompt-file "$dir/long" --ctx 200000
interrupted "Ctrl-C while all logits are written leaves no file" 'cancelled after' \
    --prompt-file "$dir/long" --ctx 200000 --dump-logits "$dir/int/l" --all-positions

# Conversations.
printf 'Hello\n/ctx\n/reset\n/ctx\nHello\n/quit\nnever\n' |
    "$ds4" -m "$model" --temp 0 --nothink --tokens 24 >"$dir/out" 2>"$dir/err"
cat "$dir/plain" "$dir/plain" | cmp -s - "$dir/out" && grep -q ' 0 of [0-9]* tokens are used' "$dir/err" &&
    ok "lines from a pipe are turns; /reset begins anew" ||
    bad "lines from a pipe are turns; /reset begins anew" "$(cat "$dir/out" "$dir/err")"
printf 'Hello' >"$dir/hello.txt"
printf '/read %s\n' "$dir/hello.txt" | "$ds4" -m "$model" --temp 0 --nothink --tokens 24 >"$dir/out" 2>"$dir/err"
same "$dir/plain" "$dir/out" "/read sends the text of a file"
printf '/reed x\n' | "$ds4" -m "$model" >"$dir/out" 2>"$dir/err"
[ $? -eq 1 ] && grep -q 'no such command: /reed x' "$dir/err" && ok "an unknown command is named" ||
    bad "an unknown command is named" "$(cat "$dir/err")"

script='[{"wait": "> "}, {"send": "Hello\r"}, {"wait": "\u001b[2m"}, {"send": "\u0003"}, {"wait": "stopped"},
    {"wait": "generation: "}, {"wait": "> "}, {"send": "/ctx\r"}, {"wait": "tokens are used"}, {"wait": "> "},
    {"send": "\u0003"}, {"wait": "> "}, {"send": "\u0004"}, {"exit": 0}]'
if ! python3 -c 'import pty; pty.openpty()' 2>/dev/null; then
    echo "skip a terminal: skipped (no pseudo-terminal)"
elif python3 tests/util/terminal.py "$script" "$ds4" -m "$model" --temp 1 --seed 1 --think --ignore-eos --ctx 20000 \
    --history "$dir/history" >"$dir/out" 2>&1 && grep -q Hello "$dir/history"; then
    ok "a terminal: history, Ctrl-C stops an answer, Ctrl-D leaves"
else
    bad "a terminal: history, Ctrl-C stops an answer, Ctrl-D leaves" "$(tail -c 2000 "$dir/out")"
fi
