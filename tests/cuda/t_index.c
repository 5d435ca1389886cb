/* t_index.c: the choice of compressed rows at real sizes, with many equal scores: against a sort. Queries and rows are
 * numbers as simulated FP4 leaves them, and all scores are exact, so that only one answer is right. */
#include "cuda/util_ops.h"
#include "util/unit.h"

enum { DIM = 128, TOP = 512, ROWS = 40000, SEQS = 2, RATIO = 4, MOST = 8, PATTERNS = 701 };

typedef struct rig {
    backend *b;
    int heads;
    float *q, *w, *k;  /* of MOST rows; of the patterns that index rows are copies of */
    float *dev_k;
    uint16_t *pattern; /* [SEQS][ROWS] */
} rig;

typedef enum kind { MIXED, ALL_EQUAL, SOME_NAN } kind;

static rig make_rig(int heads, kind kd)
{
    static const float fp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    rig r = {.heads = heads};
    rng g = {(uint64_t)heads + 3};
    be_dims m = {.d = 256, .idx_heads = heads, .idx_dim = DIM, .idx_topk = TOP, .rope_dim = 64};
    size_t nq = (size_t)(MOST * heads * DIM), nk = PATTERNS * DIM;
    r.b = open_gpu(BE_ACT_Q8, &m);
    r.q = malloc(nq * sizeof *r.q);
    r.k = malloc(nk * sizeof *r.k);
    r.w = malloc((size_t)(MOST * heads) * sizeof *r.w);
    r.pattern = malloc(SEQS * ROWS * sizeof *r.pattern);
    for (size_t i = 0; i < nq; i++)
        r.q[i] = fp4[rng_below(&g, 8)] * (rng_below(&g, 2) ? 1 : -1);
    for (size_t i = 0; i < nk; i++)
        r.k[i] = fp4[rng_below(&g, 8)] * (rng_below(&g, 2) ? 1 : -1) * 0.25f;
    for (int i = 0; i < MOST * heads; i++)
        r.w[i] = (float)(rng_below(&g, 9) - 2) * 0.5f;
    for (int i = 0; kd == SOME_NAN && i < PATTERNS; i += 9)
        r.k[i * DIM + i % DIM] = NAN;
    float *all = malloc((size_t)SEQS * ROWS * DIM * sizeof *all);
    for (int i = 0; i < SEQS * ROWS; i++) {
        r.pattern[i] = (uint16_t)(kd == ALL_EQUAL ? 5 : rng_below(&g, PATTERNS));
        memcpy(all + (size_t)i * DIM, r.k + r.pattern[i] * DIM, DIM * sizeof *all);
    }
    r.dev_k = to_dev(r.b, all, (size_t)SEQS * ROWS * DIM);
    free(all);
    return r;
}

static void close_rig(rig *r)
{
    close_clean(r->b);
    free(r->q);
    free(r->k);
    free(r->w);
    free(r->pattern);
}

typedef struct entry {
    double score;
    int at;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->at - y->at;
}

static int by_place(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void expected(const rig *r, int row, int seq, int have, int32_t *sel)
{
    static double score[PATTERNS];
    static entry e[ROWS];
    for (int p = 0; p < PATTERNS; p++) {
        score[p] = 0;
        for (int h = 0; h < r->heads; h++) {
            double dot = 0;
            for (int i = 0; i < DIM; i++)
                dot += (double)r->q[(row * r->heads + h) * DIM + i] * (double)r->k[p * DIM + i];
            score[p] += (double)r->w[row * r->heads + h] * (dot < 0 ? 0 : dot);
        }
        score[p] = isnan(score[p]) ? -INFINITY : score[p];
    }
    for (int i = 0; i < have; i++)
        e[i] = (entry){score[r->pattern[seq * ROWS + i]], i};
    if (have > TOP)
        qsort(e, (size_t)have, sizeof *e, by_rank);
    for (int i = 0; i < TOP; i++)
        sel[i] = i < have ? e[i].at : -1;
    if (have > TOP)
        qsort(sel, TOP, sizeof *sel, by_place);
}

/* One launch of n rows that see have[i] compressed rows each; only `wanted` of them are looked at. */
static void check_rows_of(rig *r, const int *have, int n, int wanted)
{
    int32_t pos[MOST], seq[MOST], got[MOST * TOP], want[TOP];
    be_rows rows = {.n = n};
    for (int i = 0; i < n; i++) {
        pos[i] = have[i] * RATIO + i % RATIO - 1;
        pos[i] = pos[i] < 0 ? 0 : pos[i];
        seq[i] = i % SEQS;
        rows.max_pos = pos[i] > rows.max_pos ? pos[i] : rows.max_pos;
    }
    rows.pos = rows.token = ints_to_dev(r->b, pos, (size_t)n);
    rows.seq = ints_to_dev(r->b, seq, (size_t)n);
    rows.count = wanted < n ? ints_to_dev(r->b, &wanted, 1) : NULL;
    be_store store = {r->dev_k, DIM, ROWS, (size_t)ROWS * DIM};
    int32_t *sel = (int32_t *)dev_room(r->b, (size_t)n * TOP);
    r->b->op->index_select(r->b, &rows, RATIO, to_dev(r->b, r->q, (size_t)(n * r->heads * DIM)),
                           to_dev(r->b, r->w, (size_t)(n * r->heads)), &store, sel);
    check_guards(r->b, (float *)sel, (size_t)n * TOP);
    r->b->op->download(r->b, got, sel, (size_t)n * TOP * sizeof *got);
    for (int i = 0; i < n; i++) {
        int seen = (pos[i] + 1) / RATIO;
        if (i < wanted)
            expected(r, i, seq[i], seen, want);
        for (int k = 0; k < TOP; k++)
            if (i < wanted ? got[i * TOP + k] != want[k] : got[i * TOP + k] < -1 || got[i * TOP + k] >= seen)
                fail_msg("%d heads, row %d of %d that sees %d: choice %d is %d, expected %d", r->heads, i, n, seen, k,
                         got[i * TOP + k], want[k]);
    }
}

static const int sizes[][MOST] = {
    {0, 1, 511, 512, 513, 514, 700, 2047},
    {2048, 2049, 3000, 4096, 8191, 8192, 8200, 600},
    {16384, 16383, 9, 16000, 12345, 512, 1000, 15000},
    {16385, 16484, 16896, 16897, 20000, 32768, 513, 512},
    {40000, 33000, 39999, 17000, 500, 32769, 1023, 2000},
};

static void check_kind(int heads, kind kd)
{
    rig r = make_rig(heads, kd);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int n = 1; n <= (s < 2 ? 4 : 1); n++)
            check_rows_of(&r, sizes[s] + n, n, n);
        check_rows_of(&r, sizes[s], MOST, MOST);
        check_rows_of(&r, sizes[s], MOST, 5);
    }
    close_rig(&r);
}

static void the_best_rows_in_order(void **state)
{
    (void)state;
    check_kind(32, MIXED);
    if (getenv("DS4_TEST_EMU"))
        return;
    check_kind(8, MIXED);
    check_kind(128, MIXED);
}

static void equal_scores_go_to_the_lower_index(void **state)
{
    (void)state;
    check_kind(8, ALL_EQUAL);
}

static void nan_is_not_chosen(void **state)
{
    (void)state;
    check_kind(8, SOME_NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_rows_in_order),
        cmocka_unit_test(equal_scores_go_to_the_lower_index),
        cmocka_unit_test(nan_is_not_chosen),
    };
    return cmocka_run_group_tests_name("choice of compressed rows", tests, NULL, NULL);
}
