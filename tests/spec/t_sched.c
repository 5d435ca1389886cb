/* t_sched: the scheduler drafts where it pays, stops where it does not, and is not fooled by a busy machine. */
#include <math.h>

#include "util/unit.h"

#include "spec/sched.h"

/* A machine where a forward of n rows takes base + n*row, a proposal p. */
static sched_costs machine(sched *s, double base, double row, double p)
{
    sched_costs c = {.known = true, .p = p};
    for (int n = 1; n <= 6; n++)
        c.t[n] = base + n * row;
    sched_init(s, 5);
    sched_set_costs(s, &c);
    sched_set_mode(s, SCHED_AUTO, 0);
    return c;
}

static proposal drafts(float c0, float rest)
{
    proposal p = {.n = 5};
    for (int i = 0; i < 5; i++)
        p.conf[i] = i ? rest : c0;
    return p;
}

/* One cycle on machine c with k drafts of which `accepted` hold; returns whether a proposal was made. */
static bool cycle_of(sched *s, const sched_costs *c, int pos, float conf, int accepted, double slow)
{
    if (!sched_wants(s, pos, 5)) {
        sched_note(s, pos, false, false, 0, 1, c->t[1] * slow, 1);
        return false;
    }
    proposal p = drafts(conf, conf);
    int k = sched_choose(s, pos, &p), a = accepted < k ? accepted : k;
    sched_note(s, pos, true, false, c->p * slow, k + 1, c->t[k + 1] * slow, a + 1);
    return true;
}

static void fixed_threshold_is_a_prefix(void **u)
{
    (void)u;
    sched s;
    proposal p = {.n = 5, .conf = {0.9f, 0.8f, 0.4f, 0.9f, 0.9f}};
    sched_init(&s, 5);
    sched_set_mode(&s, SCHED_FIXED, 0.5f);
    assert_true(sched_wants(&s, 0, 5));
    assert_int_equal(sched_choose(&s, 0, &p), 2);
    sched_set_mode(&s, SCHED_FIXED, 0);
    assert_int_equal(sched_choose(&s, 0, &p), 5);
    sched_set_mode(&s, SCHED_OFF, 0);
    assert_false(sched_wants(&s, 0, 5));
}

/* Rows are admitted while tokens per second rise. */
static void more_rows_where_they_are_cheap(void **u)
{
    (void)u;
    sched s;
    proposal sure = drafts(0.95f, 0.95f), unsure = drafts(0.5f, 0.5f), none = drafts(0.02f, 0.5f);
    machine(&s, 0.9, 0.1, 0.2);
    assert_int_equal(sched_choose(&s, 0, &sure), 5);
    int some = sched_choose(&s, 0, &unsure);
    assert_true(some >= 1 && some < 5);
    assert_int_equal(sched_choose(&s, 0, &none), 0);
    machine(&s, 0, 1, 0.2);
    assert_int_equal(sched_choose(&s, 0, &unsure), 0);
}

/* A row as dear as a whole step: even full acceptance cannot pay, so no proposal is ever made. */
static void never_drafts_where_it_cannot_pay(void **u)
{
    (void)u;
    sched s;
    const sched_costs c = machine(&s, 0, 1, 0.5);
    for (int i = 0; i < 5000; i++)
        assert_false(cycle_of(&s, &c, i, 1, 5, 1));
    char buf[600];
    sched_report(&s, buf, sizeof buf);
    assert_has(buf, "cannot pay");
}

/* Bad drafts with confident heads: quenched after a few cycles, probed at growing intervals; the loss stays below 3 %.
 */
static void quenches_and_probes(void **u)
{
    (void)u;
    sched s;
    int made = 0, early = 0, steps = 3000;
    double spent = 0, plain = 0;
    const sched_costs c = machine(&s, 0.8, 0.2, 0.3);
    for (int i = 0; i < steps; i++) {
        bool p = cycle_of(&s, &c, i, 0.9f, 0, 1);
        made += p;
        early += p && i < 64;
        spent += p ? c.p + c.t[6] : c.t[1];
        plain += c.t[1];
    }
    print_message("%d proposals in %d cycles, %d in the first 64, time %.3f of plain\n", made, steps, early,
                  spent / plain);
    assert_true(made >= 3 && made < 40);
    assert_true(early <= 6);
    assert_true(spent / plain < 1.03);
    assert_true(s.quenches >= 3);
}

static void good_drafts_are_kept(void **u)
{
    (void)u;
    sched s;
    int made = 0;
    const sched_costs c = machine(&s, 0.8, 0.2, 0.3);
    for (int i = 0; i < 1000; i++)
        made += cycle_of(&s, &c, i, 0.9f, 3, 1);
    assert_int_equal(made, 1000);
}

/* Every tenth cycle takes eight times as long because another program runs: still no reason to stop. */
static void a_busy_machine_does_not_quench(void **u)
{
    (void)u;
    sched s;
    int made = 0;
    const sched_costs c = machine(&s, 0.8, 0.2, 0.3);
    for (int i = 0; i < 1000; i++)
        made += cycle_of(&s, &c, i, 0.9f, 3, i % 10 == 3 ? 8 : 1);
    assert_true(made > 950);
}

/* A disturbed measurement (one row slower than two) is not taken at face value. */
static void disturbed_table_is_made_monotonic(void **u)
{
    (void)u;
    sched s;
    sched_costs c = {.known = true, .t = {0, 9.9, 6.4, 7.2, 7.0, 9.8, 13.3}, .p = 5};
    sched_init(&s, 5);
    sched_set_costs(&s, &c);
    for (int n = 1; n <= 5; n++)
        assert_true(s.cost[0].t[n] <= s.cost[0].t[n + 1]);
    assert_true(s.cost[0].t[1] < 6.41 && s.cost[0].t[3] < 7.01);
}

/* The gate is the confidence below which no number of drafts pays; it grows with the price of a row. */
static void gate_follows_the_price(void **u)
{
    (void)u;
    sched cheap, dear;
    machine(&cheap, 0.95, 0.05, 0.2);
    machine(&dear, 0.5, 0.5, 0.2);
    float a = sched_gate(&cheap, 0, 5), b = sched_gate(&dear, 0, 5);
    assert_true(a > 0 && a < 0.1f && b > a && b <= 0.51f);
    sched_set_mode(&dear, SCHED_FIXED, 0.7f);
    assert_true(sched_gate(&dear, 0, 5) == 0.7f);
}

/* The chance that host and device compute alike is the logistic function: within float32 everywhere, rising, safe at
 * the ends. */
static void confidence_is_the_logistic_function(void **u)
{
    (void)u;
    float last = 0;
    for (int i = -12000; i <= 12000; i++) {
        const float z = (float)i / 100, c = plan_sigmoid(z);
        const double want = 1.0 / (1.0 + exp(-(double)(z > 88 ? 88 : z < -88 ? -88 : z)));
        if (!(fabs((double)c - want) <= 1e-7 * want + 1e-44) || c < last)
            fail_msg("sigmoid(%g) = %g, expected %g", (double)z, (double)c, want);
        last = c;
    }
    assert_true(plan_sigmoid(0) == 0.5f && plan_sigmoid(INFINITY) == 1.0f);
    assert_true(plan_sigmoid(-INFINITY) >= 0 && plan_sigmoid(-INFINITY) < 1e-38f && isnan(plan_sigmoid(NAN)));
}

/* A drafter that has gone wrong is not trusted: no number, no draft. */
static void nan_confidence_ends_the_drafts(void **u)
{
    (void)u;
    sched s;
    proposal p = {.n = 5, .conf = {0.9f, NAN, 0.9f, 0.9f, 0.9f}};
    machine(&s, 0.9, 0.1, 0.2);
    assert_int_equal(sched_choose(&s, 0, &p), 1);
    sched_set_mode(&s, SCHED_FIXED, 0);
    assert_int_equal(sched_choose(&s, 0, &p), 1);
    assert_true(plan_gated(0, NAN) && !plan_gated(0.5f, 0.5f) && plan_gated(0.5f, 0.49f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_threshold_is_a_prefix),
        cmocka_unit_test(more_rows_where_they_are_cheap),
        cmocka_unit_test(never_drafts_where_it_cannot_pay),
        cmocka_unit_test(quenches_and_probes),
        cmocka_unit_test(good_drafts_are_kept),
        cmocka_unit_test(a_busy_machine_does_not_quench),
        cmocka_unit_test(disturbed_table_is_made_monotonic),
        cmocka_unit_test(gate_follows_the_price),
        cmocka_unit_test(confidence_is_the_logistic_function),
        cmocka_unit_test(nan_confidence_ends_the_drafts),
    };
    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
