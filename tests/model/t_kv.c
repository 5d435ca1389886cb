/* Positional state under speculation: rings against a model that keeps everything, and any mixture of forwards, partial
 * commits and aborts against decoding one token at a time. */
#include <stdio.h>

#include "util/v4_rig.h"

enum { N = 420, ABORT_FROM = 260, ABORT_TO = 260 + 132, CTX = 512 };

/* What decoding one row at a time gives: logits[p] after token p, hash[p] of the state of p tokens. */
typedef struct straight {
    int32_t ids[N + 1];
    float logits[N][V4_VOCAB];
    uint64_t hash[N + 1];
    rig_drafts drafts[N + 1]; /* at multiples of 20 */
} straight;

static uint32_t next_random(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static uint64_t hash_of(v4_rig *t, int pos)
{
    bool ok;
    uint64_t h = kv_hash(&t->r.k, 0, pos, &ok);
    assert_true(ok);
    return h;
}

/* Opens the tiny model with rings of `room` rows beyond their windows (0: as the product has them). */
static void open_with_room(v4_rig *t, int room)
{
    v4_open(t, (rig_options){.act = BE_ACT_Q8, .sim = KV_SIM_FULL, .ctx = CTX});
    if (!room)
        return;
    ds4_err e = {0};
    int rows = t->r.b->max_rows;
    t->r.b->max_rows = room;
    kv_close(&t->r.k);
    rig_check(kv_open(&t->r.k, t->r.b, &t->r.m.s, &t->r.m.ds, 1, CTX, &e), &e);
    t->r.b->max_rows = rows;
}

static rig_drafts drafts_at(v4_rig *t, int pos)
{
    rig_drafts d;
    memset(&d, 0, sizeof d);
    rig_drafts got = rig_draft(&t->r, 0, pos % V4_VOCAB, pos, NULL, NULL);
    memcpy(d.id, got.id, sizeof(int32_t) * (size_t)(got.n + 1));
    memcpy(d.conf, got.conf, sizeof(float) * (size_t)got.n);
    d.n = got.n;
    return d;
}

static straight *decode_straight(int room)
{
    straight *s = calloc(1, sizeof *s);
    v4_rig t;
    assert_non_null(s);
    v4_tokens(s->ids, N + 1);
    open_with_room(&t, room);
    s->hash[0] = hash_of(&t, 0);
    for (int p = 0; p < N; p++) {
        rig_run(&t.r, 0, s->ids, p, p + 1, 1, s->logits[p]);
        rig_absorb(&t.r, 0, p, p + 1);
        s->hash[p + 1] = hash_of(&t, p + 1);
        if ((p + 1) % 20 == 0)
            s->drafts[p + 1] = drafts_at(&t, p + 1);
    }
    v4_close(&t);
    return s;
}

static int setup(void **state)
{
    *state = decode_straight(0);
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

/* Rings long enough for the whole sequence never wrap and never lose a row. */
static void rings_equal_keeping_everything(void **state)
{
    straight *a = *state, *b = decode_straight(N + 64);
    for (int p = 0; p < N; p++) {
        if (memcmp(a->logits[p], b->logits[p], sizeof a->logits[p]))
            fail_msg("logits of position %d", p);
        if (a->hash[p + 1] != b->hash[p + 1])
            fail_msg("state of %d tokens", p + 1);
    }
    assert_memory_equal(a->drafts, b->drafts, sizeof a->drafts);
    free(b);
}

/* A forward of n rows at p: the first `good` are the true tokens, the others are wrong. Returns 0 if the good rows'
 * logits are right. */
static int speculate(v4_rig *t, const straight *s, int p, int n, int good)
{
    int32_t ids[CTX];
    float logits[64 * V4_VOCAB];
    memcpy(ids, s->ids, sizeof s->ids);
    for (int i = good; i < n; i++)
        ids[p + i] = (s->ids[p + i < N ? p + i : N] + 1 + i) % V4_VOCAB;
    rig_run(&t->r, 0, ids, p, p + n, n, logits);
    for (int i = n > BE_NARROW ? n - BE_NARROW : 0; i < good; i++)
        if (memcmp(logits + i * V4_VOCAB, s->logits[p + i], sizeof s->logits[0]))
            return -1;
    return 0;
}

/* Random forwards of which a random part is committed. Returns the position of the first difference, or -1. */
static int random_walk(v4_rig *t, const straight *s, uint32_t seed, int max_rows)
{
    int absorbed = 0;
    for (int p = 0; p < N;) {
        int n = 1 + (int)(next_random(&seed) % (uint32_t)max_rows);
        n = n < N - p ? n : N - p;
        int good = (int)(next_random(&seed) % (uint32_t)(n + 1));
        if (speculate(t, s, p, n, good))
            return p;
        p += good;
        if (hash_of(t, p) != s->hash[p])
            return p;
        if (p % 20 || p == absorbed)
            continue;
        rig_absorb(&t->r, 0, absorbed > p - 128 ? absorbed : p - 128, p);
        absorbed = p;
        rig_drafts d = drafts_at(t, p);
        if (memcmp(&d, &s->drafts[p], sizeof d))
            return p;
    }
    return -1;
}

static void partial_commits(void **state)
{
    v4_rig t;
    open_with_room(&t, 0);
    for (uint32_t seed = 1; seed <= 6; seed++) {
        int at = random_walk(&t, *state, seed, seed % 3 ? BE_NARROW : 64);
        if (at >= 0)
            fail_msg("seed %u differs at position %d", seed, at);
    }
    v4_close(&t);
}

/* The control: rings two rows too short for 16 rows must be found out, or partial_commits could not fail. */
static void short_rings_are_found_out(void **state)
{
    v4_rig t;
    int found = 0;
    open_with_room(&t, BE_NARROW - 2);
    for (uint32_t seed = 1; seed <= 4; seed++)
        found += random_walk(&t, *state, seed, BE_NARROW) >= 0;
    v4_close(&t);
    assert_true(found > 0);
}

/* Sixteen rejected rows at every remainder mod 4 and mod 128, then one row. */
static void aborts_at_every_remainder(void **state)
{
    const straight *s = *state;
    v4_rig t;
    open_with_room(&t, 0);
    rig_run(&t.r, 0, s->ids, 0, ABORT_FROM, 64, NULL);
    for (int p = ABORT_FROM; p < ABORT_TO; p++) {
        speculate(&t, s, p, BE_NARROW, 0);
        if (hash_of(&t, p) != s->hash[p])
            fail_msg("state of %d tokens after an abort", p);
        if (speculate(&t, s, p, 1, 1))
            fail_msg("logits of position %d after an abort", p);
    }
    v4_close(&t);
}

/* A slot that held another sequence: nothing of it is visible to a new one, however short. */
static void nothing_leaks_from_the_last_sequence(void **state)
{
    const straight *s = *state;
    int32_t other[300];
    v4_rig t;
    open_with_room(&t, 0);
    for (int i = 0; i < 300; i++)
        other[i] = (i * 7 + 3) % V4_VOCAB;
    for (int n = 1; n <= 9; n += 2) {
        rig_run(&t.r, 0, other, 0, 300, 64, NULL);
        if (speculate(&t, s, 0, n, n))
            fail_msg("logits of a new sequence of %d tokens", n);
        if (hash_of(&t, n) != s->hash[n])
            fail_msg("state of a new sequence of %d tokens", n);
    }
    v4_close(&t);
}

/* kv_field_read and kv_field_write carry a state from one slot to another. */
static void fields_carry_the_state(void **state)
{
    const straight *s = *state;
    v4_rig t, u;
    open_with_room(&t, 0);
    open_with_room(&u, 0);
    const int at[] = {1, 3, 4, 127, 128, 131, 259};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        rig_run(&t.r, 0, s->ids, 0, at[i], 64, NULL);
        for (int f = 0; f < t.r.k.fields; f++) {
            const kv_field *a = &t.r.k.field[f];
            float *rows = malloc((size_t)kv_field_rows(a, at[i]) * (size_t)a->store.width * sizeof *rows + 1);
            assert_non_null(rows);
            kv_field_read(&t.r.k, a, 0, at[i], rows);
            kv_field_write(&u.r.k, &u.r.k.field[f], 0, at[i], rows);
            free(rows);
        }
        assert_true(hash_of(&u, at[i]) == s->hash[at[i]]);
        if (speculate(&u, s, at[i], 9, 9))
            fail_msg("logits after carrying %d tokens over", at[i]);
    }
    v4_close(&t);
    v4_close(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_equal_keeping_everything),
        cmocka_unit_test(partial_commits),
        cmocka_unit_test(short_rings_are_found_out),
        cmocka_unit_test(aborts_at_every_remainder),
        cmocka_unit_test(nothing_leaks_from_the_last_sequence),
        cmocka_unit_test(fields_carry_the_state),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
