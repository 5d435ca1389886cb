/* IQ2_XXS: 256 values = 8 groups of 32; value = d/8 * (2s+1) * sign * grid, s a 4-bit scale per group, grid one of 256
 * rows of 8 magnitudes {8, 25, 43}, signs with an even number of minuses per row.
 *
 * For one row of 8 and a step db the error of grid row g is, with |x| and the best legal signs,
 *     sum(w x^2) - 2 db A[g] + db^2 B[g],   A[g] = sum(w |x| g) - 2 F[g],   B[g] = sum(w g^2),
 * where F[g] = 0 if x has an even number of minuses, else the cheapest flip min_i(w_i |x_i| g_i): flipping element i
 * adds 4 db w_i |x_i| g_i. A and B do not depend on db, so every step is then searched exactly over all 256 rows at 2
 * operations each. */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"
#include "file/quant.h"

typedef float v4 __attribute__((vector_size(16)));

typedef struct row_tables { v4 a[64], b[64]; } row_tables; /* A[g], B[g], g = 4*i + lane */

typedef struct iq2_job {
    row_tables row[32];
    uint8_t signs[32]; /* bit i: x[i] < 0, before parity */
    float grid[8][256]; /* magnitudes by element, then grid row */
    float xx[8];        /* sum of w x^2 per group */
} iq2_job;

/* num/den: best step for these rows */
typedef struct group_pick { float err; float num, den; uint8_t g[4]; } group_pick;

static void build_grid(iq2_job *j)
{
    for (int g = 0; g < 256; g++)
        for (int i = 0; i < 8; i++)
            j->grid[i][g] = (float)(quant_iq2xxs_grid[g] >> (8 * i) & 255);
}

static inline v4 min4(v4 a, v4 b)
{
    typedef int i4 __attribute__((vector_size(16)));
    i4 less = a < b;
    return (v4)(((i4)a & less) | ((i4)b & ~less));
}

static void build_row(iq2_job *j, int r, const float *x, const float *w)
{
    row_tables *t = &j->row[r];
    float wx[8];
    unsigned signs = 0;
    for (int i = 0; i < 8; i++) {
        wx[i] = w[i] * fabsf(x[i]);
        signs |= (unsigned)(x[i] < 0) << i;
    }
    j->signs[r] = (uint8_t)signs;
    bool odd = __builtin_popcount(signs) & 1;
    for (int k = 0; k < 64; k++) {
        v4 a = {0}, b = {0}, flip = {INFINITY, INFINITY, INFINITY, INFINITY};
        for (int i = 0; i < 8; i++) {
            v4 g, p;
            memcpy(&g, &j->grid[i][4 * k], sizeof g);
            p = g * wx[i];
            a += p;
            b += g * g * w[i];
            flip = min4(p, flip);
        }
        t->a[k] = odd ? a - 2 * flip : a;
        t->b[k] = b;
    }
}

/* Grid row with the smallest db*(db*B - 2A); lowest index among equals. */
static int best_row(const row_tables *t, float db)
{
    typedef int i4 __attribute__((vector_size(16)));
    v4 low = {INFINITY, INFINITY, INFINITY, INFINITY};
    i4 at = {0};
    for (int k = 0; k < 64; k++) {
        v4 v = t->b[k] * db - 2 * t->a[k];
        i4 less = v < low, here = {k, k, k, k};
        low = min4(v, low);
        at = (here & less) | (at & ~less);
    }
    int best = at[0] * 4;
    float v = low[0];
    for (int lane = 1; lane < 4; lane++) {
        int g = at[lane] * 4 + lane;
        if (low[lane] < v || (low[lane] == v && g < best)) {
            v = low[lane];
            best = g;
        }
    }
    return best;
}

static group_pick pick_group(const iq2_job *j, int grp, float db)
{
    group_pick p = {0};
    for (int l = 0; l < 4; l++) {
        const row_tables *t = &j->row[4 * grp + l];
        int g = best_row(t, db);
        p.g[l] = (uint8_t)g;
        p.num += t->a[g / 4][g % 4];
        p.den += t->b[g / 4][g % 4];
    }
    p.err = j->xx[grp] + db * (db * p.den - 2 * p.num);
    return p;
}

/* Continuous step of one group: several starts around amax on each magnitude, each followed by least squares. */
static float group_step(const iq2_job *j, int grp, float amax)
{
    static const float starts[] = {1.0f, 0.62f, 0.70f, 0.77f, 0.84f, 0.92f, 1.1f, 1.22f, 1.4f, 43 / 25.0f, 43 / 8.0f};
    float best_err = INFINITY, best = 0;
    for (size_t k = 0; k < sizeof starts / sizeof *starts && best_err > 1e-6f * j->xx[grp]; k++) {
        float db = amax / 43 * starts[k];
        for (int round = 0; round < 2; round++) {
            group_pick p = pick_group(j, grp, db);
            if (p.err < best_err) {
                best_err = p.err;
                best = db;
            }
            if (!(p.num > 0))
                break;
            db = p.num / p.den;
        }
    }
    return best;
}

typedef struct block_pick { uint16_t d; double err; uint8_t s[8]; group_pick g[8]; } block_pick;

/* Best scales and rows for a given d. */
static void pick_block(const iq2_job *j, const float step[8], uint16_t d16, block_pick *out)
{
    float d = num_f16(d16);
    out->d = d16;
    out->err = 0;
    for (int grp = 0; grp < 8; grp++) {
        int mid = d > 0 ? (int)((8 * step[grp] / d - 1) / 2 + 0.5f) : 0;
        out->g[grp].err = INFINITY;
        for (int s = mid - 1; s <= mid + 1; s++) {
            if (s < 0 || s > 15)
                continue;
            group_pick p = pick_group(j, grp, d * (2 * (float)s + 1) * 0.125f);
            if (p.err < out->g[grp].err) {
                out->g[grp] = p;
                out->s[grp] = (uint8_t)s;
            }
        }
        if (out->g[grp].err == INFINITY) { /* step beyond 15: clamp */
            out->s[grp] = mid < 0 ? 0 : 15;
            out->g[grp] = pick_group(j, grp, d * (2 * (float)out->s[grp] + 1) * 0.125f);
        }
        out->err += out->g[grp].err;
    }
}

/* Least squares for d with rows and scales fixed. */
static uint16_t refit_d(const block_pick *b)
{
    double num = 0, den = 0;
    for (int grp = 0; grp < 8; grp++) {
        double k = (2 * b->s[grp] + 1) * 0.125;
        num += k * b->g[grp].num;
        den += k * k * b->g[grp].den;
    }
    return den > 0 && num > 0 ? num_to_f16((float)(num / den)) : 0;
}

/* How well odd multiples of d/8 meet the steps: weighted squared misfit. d is an f16 value, so that an input that lies
 * on a grid shows a misfit of nothing for its own d alone. */
static double misfit(const iq2_job *j, const float step[8], double d)
{
    double sum = 0;
    if (!(d > 0) || isinf(d))
        return INFINITY;
    for (int grp = 0; grp < 8; grp++) {
        double s = floor((8 * step[grp] / d - 1) / 2 + 0.5);
        s = s < 0 ? 0 : s > 15 ? 15 : s;
        double r = step[grp] - d * (2 * s + 1) * 0.125;
        sum += r * r * (step[grp] > 0 ? j->xx[grp] / ((double)step[grp] * step[grp]) : 1);
    }
    return sum;
}

static void search_block(const iq2_job *j, const float step[8], block_pick *best)
{
    float max = 0;
    bool tried[16] = {false};
    block_pick now;
    double xx = 0;
    for (int grp = 0; grp < 8; grp++) {
        max = fmaxf(max, step[grp]);
        xx += j->xx[grp];
    }
    best->err = INFINITY;
    for (int n = 0; n < 3 && best->err > 1e-6 * xx; n++) {
        int pick = -1;
        double low = INFINITY;
        for (int k = 15; k >= 0; k--) {
            double fit = tried[k] ? INFINITY : misfit(j, step, num_f16(num_to_f16(8 * max / (2 * (float)k + 1))));
            if (fit < low) {
                low = fit;
                pick = k;
            }
        }
        if (pick < 0)
            break;
        tried[pick] = true;
        uint16_t d = num_to_f16(8 * max / (2 * (float)pick + 1));
        for (int round = 0; round < 2 && d; round++) {
            pick_block(j, step, d, &now);
            if (now.err < best->err)
                *best = now;
            d = refit_d(&now);
        }
    }
    if (best->err == INFINITY)
        pick_block(j, step, 1, best);
}

/* Seven stored sign bits of a row; with odd parity the cheapest sign is flipped. */
static uint32_t row_signs(const iq2_job *j, int r, const float *x, const float *w, int g)
{
    unsigned signs = j->signs[r];
    if (__builtin_popcount(signs) & 1) {
        int cheap = 0;
        float low = INFINITY;
        for (int i = 0; i < 8; i++) {
            float c = w[i] * fabsf(x[i]) * j->grid[i][g];
            if (c < low) {
                low = c;
                cheap = i;
            }
        }
        signs ^= 1u << cheap;
    }
    return signs & 127; /* bit 7 follows from parity */
}

void enc_iq2_xxs_block(const float x[256], const float w[256], uint8_t dst[66])
{
    iq2_job j;
    block_pick best;
    float step[8], all = 0;
    quant_iq2_xxs blk = {0};
    for (int i = 0; i < 256; i++)
        all = fmaxf(all, fabsf(x[i]));
    if (all < 0x1p-24f * 0.5f) { /* below half of what the smallest d yields: the zero block is nearer */
        memcpy(dst, &blk, sizeof blk);
        return;
    }
    build_grid(&j);
    for (int grp = 0; grp < 8; grp++) {
        float amax = 0, xx = 0;
        for (int i = 32 * grp; i < 32 * grp + 32; i++) {
            amax = fmaxf(amax, fabsf(x[i]));
            xx += w[i] * x[i] * x[i];
        }
        j.xx[grp] = xx;
        for (int l = 0; l < 4; l++)
            build_row(&j, 4 * grp + l, x + 32 * grp + 8 * l, w + 32 * grp + 8 * l);
        step[grp] = amax > 0 ? group_step(&j, grp, amax) : 0;
    }
    search_block(&j, step, &best);
    blk.d = best.d;
    for (int grp = 0; grp < 8; grp++) {
        uint32_t hi = (uint32_t)best.s[grp] << 28;
        for (int l = 0; l < 4; l++) {
            const float *xr = x + 32 * grp + 8 * l, *wr = w + 32 * grp + 8 * l;
            hi |= row_signs(&j, 4 * grp + l, xr, wr, best.g[grp].g[l]) << (7 * l);
        }
        const uint8_t *g = best.g[grp].g;
        blk.q[4 * grp] = (uint16_t)(g[0] | g[1] << 8);
        blk.q[4 * grp + 1] = (uint16_t)(g[2] | g[3] << 8);
        blk.q[4 * grp + 2] = (uint16_t)hi;
        blk.q[4 * grp + 3] = (uint16_t)(hi >> 16);
    }
    memcpy(dst, &blk, sizeof blk);
}
