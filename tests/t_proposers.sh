#!/bin/bash
# The text does not depend on what is proposed: the fixture with proposers that are always right, always wrong, random,
# short. 64 tokens, greedy and sampled.
cd "$(dirname "$0")/.." || exit 2
out=$(mktemp) || exit 2
trap 'rm -f "$out"' EXIT

check() { # check NAME VARIABLE=VALUE...
    local name=$1
    shift
    if env DS4_DSPARK_FIXTURE_TOKENS=64 DS4_DSPARK_FIXTURE_PROPOSERS="random wrong short oracle" "$@" \
        tests/dspark_acceptance_fixture.sh >"$out" 2>&1; then
        if grep -q '^skipped' "$out"; then
            echo "skip $name: $(cat "$out")"
        else
            echo "ok $name"
        fi
    else
        cat "$out"
        echo "not ok $name"
    fi
}

check "greedy text is the same under every proposer" DS4_DSPARK_FIXTURE_TEMP=0
check "sampled text is the same under every proposer" DS4_DSPARK_FIXTURE_TEMP=1 DS4_DSPARK_FIXTURE_SEED=7 \
    DS4_DSPARK_FIXTURE_REQUIRE_PROPOSAL_QUALITY=0 DS4_DSPARK_FIXTURE_EXPECT_DRAFTS=
