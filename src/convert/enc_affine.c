/* Fitting x = d*sc[g]*q - dmin*mn[g] to a block of 256 (Q4_K, Q2_K).
 *
 *   1. per group: a continuous scale and minimum, by least squares from several starting spacings;
 *   2. f16 steps d, dmin for all groups together: the largest scale on the largest code; where groups show a common
 *      grid its steps are tried too, so that an input that lies on a grid is recovered;
 *   3. per group the best integer pair near the continuous one; least squares for (d, dmin) given all codes; repeat;
 *   4. a wider search per group with d, dmin fixed. */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"

typedef struct group_fit { double s, m, err; } group_fit; /* x = s*q - m, both >= 0 */

typedef struct block_job {
    const float *x, *w;
    group_fit fit[16];
    double err[16]; /* of the current integer choice, per group */
} block_job;

/* Nearest code of v (any sign), 0..qmax. */
static inline int code_of(float v, int qmax)
{
    int q = v > 0 ? (int)(v + 0.5f) : 0;
    return q > qmax ? qmax : q;
}

/* Weighted squared error of a group under (s, m); codes into q if not NULL. Stops early above `limit`. */
static double group_error(const float *x, const float *w, int len, float s, float m, int qmax, double limit, uint8_t *q)
{
    float inv = s > 0 ? 1 / s : 0;
    double err = 0;
    if (!isfinite(inv))
        inv = 0;
    for (int i = 0; i < len; i++) {
        int c = code_of((x[i] + m) * inv, qmax);
        float r = x[i] - (s * (float)c - m);
        err += (double)(w[i] * r * r);
        if (q)
            q[i] = (uint8_t)c;
        else if (err >= limit)
            return err;
    }
    return err;
}

/* Least squares for (s, m) with the codes that (*s, *m) imply. */
static void refit(const float *x, const float *w, int len, int qmax, double *s, double *m)
{
    double sw = 0, sq = 0, sqq = 0, sx = 0, sqx = 0;
    float inv = (float)(1 / *s), off = (float)*m;
    for (int i = 0; i < len; i++) {
        double c = code_of((x[i] + off) * inv, qmax), wi = w[i];
        sw += wi;
        sq += wi * c;
        sqq += wi * c * c;
        sx += wi * x[i];
        sqx += wi * c * x[i];
    }
    double det = sw * sqq - sq * sq;
    if (det > 1e-12 * sw * sqq) {
        double ns = (sw * sqx - sq * sx) / det, nm = (sq * sqx - sqq * sx) / det;
        if (nm < 0) {
            nm = 0;
            ns = sqx / sqq;
        }
        if (ns > 0) {
            *s = ns;
            *m = nm;
        }
    }
}

static void try_spacing(group_fit *best, const float *x, const float *w, int len, int qmax, double s, double m)
{
    for (int round = 0; round < 2; round++) {
        refit(x, w, len, qmax, &s, &m);
        double err = group_error(x, w, len, (float)s, (float)m, qmax, best->err, NULL);
        if (err < best->err)
            *best = (group_fit){s, m, err};
    }
}

static group_fit fit_group(const float *x, const float *w, int len, int qmax, double tiny)
{
    float lo = 0, hi = x[0], low = x[0];
    for (int i = 0; i < len; i++) {
        low = fminf(low, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    lo = fminf(low, 0);
    group_fit best = {0, -lo, 0};
    best.err = group_error(x, w, len, 0, -lo, qmax, INFINITY, NULL);
    if (!(hi - lo > 1e-37f))
        return best;
    for (int levels = qmax; levels >= 1 && best.err > tiny; levels--)
        try_spacing(&best, x, w, len, qmax, (double)(hi - lo) / levels, -lo);
    for (int t = 1; t <= qmax - 1 && low > 0 && best.err > tiny; t++) /* all positive: the code of the smallest is t */
        for (int levels = qmax - t; levels >= 1 && hi > low; levels--)
            try_spacing(&best, x, w, len, qmax, (double)(hi - low) / levels,
                        fmax((double)(hi - low) / levels * t - low, 0));
    for (int k = -8; k <= 8 && best.err > tiny; k++)
        try_spacing(&best, x, w, len, qmax, (double)(hi - lo) / (qmax + 0.12 * k), -lo);
    return best;
}

/* A group that uses few codes shows a spacing that is a fraction of its scale: levels/qmax of it. */
enum { MAX_FRACTIONS = 3 };
static const double fractions[MAX_FRACTIONS] = {1, 3, 1.5};

/* How many of v[0..n) are positive integer multiples (up to top) of step, fractions allowed for. */
static int count_multiples(const double *v, int n, int top, int n_fractions, double step)
{
    int hits = 0;
    for (int i = 0; i < n; i++)
        for (int f = 0; f < n_fractions; f++) {
            double r = v[i] * fractions[f] / step, near = floor(r + 0.5);
            if (fabs(r - near) < 1e-4 && near >= 1 && near <= top) {
                hits++;
                break;
            }
        }
    return hits;
}

/* f16 step that makes the most of v[0..n) integers, 0 if there is none for at least two: a guess at the grid on which
 * the input may lie. n_fractions: how many of the fractions above a spacing may be wrong by. */
static uint16_t grid_step(const double *v, int n, int top, int n_fractions)
{
    int most = 1;
    uint16_t best = 0;
    for (int i = 0; i < n * n_fractions; i++)
        for (int k = top; k >= 1 && v[i % n] > 0; k--) {
            double value = v[i % n] * fractions[i / n];
            uint16_t step = num_to_f16((float)(value / k));
            double exact = (double)num_f16(step) * k;
            if (!step || fabs(exact - value) > 2e-6 * value)
                continue;
            int hits = count_multiples(v, n, top, n_fractions, num_f16(step));
            if (hits > most) {
                most = hits;
                best = step;
            }
        }
    return best;
}

/* f16 step that puts the largest of v[0..n) on code `top`. */
static uint16_t top_step(const double *v, int n, int top)
{
    double max = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, v[i]);
    uint16_t step = num_to_f16((float)(max / top));
    return max > 0 && step == 0 ? 1 : step;
}

/* Best integer pair of group g within the given distances of the continuous fit; writes a->sc/mn and j->err. */
static void choose_group(enc_affine *a, block_job *j, int g, int ds, int dm)
{
    const float *x = j->x + g * a->len, *w = j->w + g * a->len;
    float d = num_f16(a->d), dmin = num_f16(a->dmin);
    int s0 = d > 0 ? code_of((float)j->fit[g].s / d, a->smax) : 0;
    int m0 = dmin > 0 ? code_of((float)j->fit[g].m / dmin, a->smax) : 0;
    int mlast = dmin > 0 ? a->smax : 0, slast = d > 0 ? a->smax : 0;
    j->err[g] = INFINITY;
    for (int s = s0 - ds; s <= s0 + ds; s++)
        for (int m = m0 - dm; m <= m0 + dm; m++) {
            if (s < 0 || s > slast || m < 0 || m > mlast)
                continue;
            double err = group_error(x, w, a->len, d * (float)s, dmin * (float)m, a->qmax, j->err[g], NULL);
            if (err < j->err[g]) {
                j->err[g] = err;
                a->sc[g] = (uint8_t)s;
                a->mn[g] = (uint8_t)m;
            }
        }
}

static double choose_all(enc_affine *a, block_job *j, int ds, int dm)
{
    double sum = 0;
    for (int g = 0; g < a->groups; g++) {
        choose_group(a, j, g, ds, dm);
        sum += j->err[g];
    }
    return sum;
}

static void fill_codes(enc_affine *a, const block_job *j)
{
    for (int g = 0; g < a->groups; g++)
        group_error(j->x + g * a->len, j->w + g * a->len, a->len, num_f16(a->d) * (float)a->sc[g],
                    num_f16(a->dmin) * (float)a->mn[g], a->qmax, INFINITY, a->q + g * a->len);
}

/* Least squares for (d, dmin) with everything else fixed; false if it has no useful solution. */
static bool refit_steps(enc_affine *a, const block_job *j)
{
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < 256; i++) {
        int g = i / a->len;
        double p = (double)a->sc[g] * a->q[i], m = a->mn[g], w = j->w[i], x = j->x[i];
        aa += w * p * p;
        ab += w * p * m;
        bb += w * m * m;
        ax += w * p * x;
        bx += w * m * x;
    }
    double det = aa * bb - ab * ab, d, dmin;
    if (aa <= 0)
        return false;
    if (bb > 0 && det > 1e-9 * aa * bb) {
        d = (ax * bb - ab * bx) / det;
        dmin = (ax * ab - aa * bx) / det;
    } else {
        d = ax / aa;
        dmin = 0;
    }
    if (!(d > 0) || !(dmin >= 0) || d > 65000 || dmin > 65000)
        return false;
    a->d = num_to_f16((float)d);
    a->dmin = num_to_f16((float)dmin);
    return a->d != 0;
}

/* Searches again the groups that are not exact: all pairs, or a window around the fit. Returns the sum of errors. */
static double widen(enc_affine *a, block_job *j, bool all, double tiny)
{
    double sum = 0;
    for (int g = 0; g < a->groups; g++) {
        if (j->err[g] > tiny)
            choose_group(a, j, g, all ? a->smax : 2, all ? a->smax : 3);
        sum += j->err[g];
    }
    return sum;
}

/* Many groups hit the grid of (d, dmin): then the others lie on it too, but did not show their spacing. */
static bool many_exact(const enc_affine *a, const block_job *j, double tiny)
{
    int exact = 0;
    for (int g = 0; g < a->groups; g++)
        exact += j->err[g] <= tiny;
    return 3 * exact >= a->groups;
}

/* From first steps (d, dmin in *a) to the best codes near them. Returns the error. */
static double refine(enc_affine *a, block_job *j, double tiny)
{
    double err = choose_all(a, j, 1, 1);
    if (many_exact(a, j, tiny))
        err = widen(a, j, true, tiny);
    fill_codes(a, j);
    for (int round = 0; round < 3 && err > tiny * a->groups; round++) {
        enc_affine next = *a;
        if (!refit_steps(&next, j))
            break;
        double e2 = choose_all(&next, j, 1, 1);
        if (e2 >= err)
            break;
        fill_codes(&next, j);
        *a = next;
        err = e2;
    }
    if (err > tiny * a->groups) {
        choose_all(a, j, 1, 1); /* j->err again belongs to *a */
        err = widen(a, j, false, tiny);
        fill_codes(a, j);
    }
    return err;
}

void enc_affine_fit(enc_affine *a, const float x[256], const float w[256])
{
    block_job j = {.x = x, .w = w};
    double s[16], m[16], energy = 0;
    for (int i = 0; i < 256; i++)
        energy += (double)w[i] * x[i] * x[i];
    double tiny = 1e-11 * energy / a->groups;
    for (int g = 0; g < a->groups; g++) {
        j.fit[g] = fit_group(x + g * a->len, w + g * a->len, a->len, a->qmax, tiny);
        s[g] = j.fit[g].s;
        m[g] = j.fit[g].m;
    }
    enc_affine grid = *a;
    uint16_t gd = grid_step(s, a->groups, a->smax, a->qmax == 3 ? MAX_FRACTIONS : 1);
    uint16_t gm = grid_step(m, a->groups, a->smax, 1);
    a->d = top_step(s, a->groups, a->smax);
    a->dmin = top_step(m, a->groups, a->smax);
    grid.d = gd ? gd : a->d;
    grid.dmin = gm ? gm : a->dmin;
    bool differ = grid.d != a->d || grid.dmin != a->dmin;
    double err = refine(a, &j, tiny);
    if (differ && err > tiny * a->groups && refine(&grid, &j, tiny) < err)
        *a = grid;
}
