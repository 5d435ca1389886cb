/* synth.h: random blocks in the layouts of quant.h, for models that are made up to measure speed.
 *
 * A recipe says what a block needs beside random bits so that its numbers are finite, have mean zero and a given root
 * mean square. A block depends on recipe, seed and index alone, so that every backend can make its own and all agree.
 * For F32, F16 and BF16 a block is one number. Only integers are used when blocks are made. */
#ifndef DS4_FILE_SYNTH_H
#define DS4_FILE_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "file/quant.h"

/* How the functions below are declared; a device compiler sets its own. */
#ifndef SYNTH_FN
#define SYNTH_FN static inline
#endif

typedef struct synth_recipe {
    uint32_t type, bytes, block; /* bytes and elements of a block */
    uint32_t scale, second;      /* bits of d and dmin, or the exponent as stored */
    uint32_t chance;             /* of 2^32: an exponent one higher */
} synth_recipe;

#ifdef __cplusplus
extern "C" {
#endif
/* False if the type has no recipe or rms is out of its range. */
bool synth_plan(synth_recipe *r, uint32_t type, double rms);
#ifdef __cplusplus
}
#endif

/* Number `at` of the stream that belongs to `key`. */
SYNTH_FN uint64_t synth_bits(uint64_t key, uint64_t at)
{
    uint64_t z = key + (at + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

SYNTH_FN void synth_put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* sign, exponent, random fraction; width and number of fraction bits follow from the type */
SYNTH_FN uint32_t synth_float(const synth_recipe *r, uint64_t bits)
{
    uint32_t e = r->scale + ((uint32_t)(bits >> 32) < r->chance), v = (uint32_t)bits;
    if (r->type == Q_F32)
        return (v & 0x807fffffu) | e << 23;
    if (r->type == Q_F16)
        return (v & 0x83ffu) | e << 10;
    return (v & 0x807fu) | e << 7;
}

/* 12 packed bytes of Q4_K whose minimums are the scales */
SYNTH_FN void synth_k4_scales(uint8_t *p)
{
    for (int i = 0; i < 4; i++) {
        p[4 + i] = p[i];
        p[8 + i] = (uint8_t)((p[8 + i] & 15) * 17);
    }
}

/* Writes block `index`. */
SYNTH_FN void synth_block(const synth_recipe *r, uint64_t seed, uint64_t index, uint8_t *out)
{
    const uint64_t key = synth_bits(seed, index);
    if (r->type == Q_F32 || r->type == Q_F16 || r->type == Q_BF16) {
        uint32_t v = synth_float(r, key);
        for (uint32_t i = 0; i < r->bytes; i++)
            out[i] = (uint8_t)(v >> 8 * i);
        return;
    }
    for (uint32_t i = 0; i < r->bytes; i += 8) {
        uint64_t v = synth_bits(key, i / 8);
        for (uint32_t k = 0; k < 8 && i + k < r->bytes; k++)
            out[i + k] = (uint8_t)(v >> 8 * k);
    }
    switch (r->type) {
    case Q_Q2_K: /* (scale, minimum) nibbles alike, 8 to 15; dmin = 1.5 d */
        for (int i = 0; i < 16; i++)
            out[i] = (uint8_t)((8 | (out[i] & 7)) * 17);
        synth_put16(out + 80, r->scale);
        synth_put16(out + 82, r->second);
        break;
    case Q_Q4_K: /* dmin = 7.5 d */
        synth_k4_scales(out + 4);
        synth_put16(out, r->scale);
        synth_put16(out + 2, r->second);
        break;
    case Q_MXFP4:
        out[0] = (uint8_t)(r->scale + ((uint32_t)(key >> 32) < r->chance));
        break;
    default: /* Q8_0, Q4_0, IQ2_XXS: d stands first */
        synth_put16(out, r->scale);
        break;
    }
}

#endif
