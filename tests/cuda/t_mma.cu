/* t_mma.cu: the tensor-core wrappers of mma.cuh against plain loops: which lane holds which numbers. */
#include <cuda_runtime.h>

#include "backend/cuda/mma.cuh"

extern "C" {
#include "util/unit.h"
}

enum { M = 16, N = 8, K = 32 };

/* One warp: c = a x b + c for each of the three shapes, from whole matrices. */
static __global__ void products(const int8_t *a, const int8_t *b, const uint16_t *ha, const uint16_t *hb, int *c32,
                                int *c16, float *ch)
{
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    int wide[4], half[4];
    float real[4];
    for (int i = 0; i < 4; i++) {
        int at = (g + 8 * (i / 2)) * N + 2 * t + i % 2;
        wide[i] = c32[at], half[i] = c16[at], real[i] = ch[at];
    }
    uint32_t r[4], q[4], s[4];
    for (int i = 0; i < 4; i++) {
        int row = g + 8 * (i % 2);
        r[i] = *reinterpret_cast<const uint32_t *>(a + row * K + 4 * t + 16 * (i / 2));
        q[i] = *reinterpret_cast<const uint32_t *>(ha + row * 16 + 2 * t + 8 * (i / 2));
    }
    for (int i = 0; i < 2; i++) {
        s[i] = *reinterpret_cast<const uint32_t *>(b + g * K + 4 * t + 16 * i);
        s[2 + i] = *reinterpret_cast<const uint32_t *>(hb + g * 16 + 2 * t + 8 * i);
    }
    mma_s8_k32(wide, r, s[0], s[1]);
    mma_s8_k16(half, r[0], r[1], s[0]);
    mma_f16_k16(real, q, s[2], s[3]);
    for (int i = 0; i < 4; i++) {
        int at = (g + 8 * (i / 2)) * N + 2 * t + i % 2;
        c32[at] = wide[i], c16[at] = half[i], ch[at] = real[i];
    }
}

struct matrices {
    int8_t a[M * K], b[N * K];
    uint16_t ha[M * 16], hb[N * 16];
    int c32[M * N], c16[M * N];
    float ch[M * N];
};

/* F16 of an integer below 2048 in size. */
static uint16_t half_of(int v)
{
    uint16_t sign = v < 0 ? 0x8000 : 0;
    unsigned m = (unsigned)(v < 0 ? -v : v);
    if (!m)
        return sign;
    int e = 31 - __builtin_clz(m);
    return (uint16_t)(sign | (e + 15) << 10 | ((m << (10 - e)) & 0x3ff));
}

static void fragments_lie_where_the_wrappers_say(void **state)
{
    (void)state;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices)
        UNIT_SKIP("no GPU");
    static matrices h, got;
    static int fa[M * 16], fb[N * 16];
    uint64_t seed = 11;
    for (int i = 0; i < M * K; i++)
        h.a[i] = (int8_t)unit_rand(&seed);
    for (int i = 0; i < N * K; i++)
        h.b[i] = (int8_t)unit_rand(&seed);
    for (int i = 0; i < M * 16; i++)
        h.ha[i] = half_of(fa[i] = (int)(unit_rand(&seed) % 1001) - 500);
    for (int i = 0; i < N * 16; i++)
        h.hb[i] = half_of(fb[i] = (int)(unit_rand(&seed) % 1001) - 500);
    for (int i = 0; i < M * N; i++) {
        h.c32[i] = h.c16[i] = (int)(unit_rand(&seed) % 1000);
        h.ch[i] = (float)h.c32[i];
    }
    matrices *d;
    assert_int_equal(cudaMalloc(reinterpret_cast<void **>(&d), sizeof *d), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(d, &h, sizeof h, cudaMemcpyHostToDevice, 0), cudaSuccess);
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(1);
    cfg.blockDim = dim3(32);
    assert_int_equal(cudaLaunchKernelEx(&cfg, products, static_cast<const int8_t *>(d->a),
                                        static_cast<const int8_t *>(d->b), static_cast<const uint16_t *>(d->ha),
                                        static_cast<const uint16_t *>(d->hb), &d->c32[0], &d->c16[0], &d->ch[0]),
                     cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(&got, d, sizeof got, cudaMemcpyDeviceToHost, 0), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(0), cudaSuccess);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            int c32 = h.c32[m * N + n], c16 = c32, ch = c32; /* all sums are below 2^24 */
            for (int k = 0; k < K; k++)
                c32 += h.a[m * K + k] * h.b[n * K + k];
            for (int k = 0; k < 16; k++) {
                c16 += h.a[m * K + k] * h.b[n * K + k];
                ch += fa[m * 16 + k] * fb[n * 16 + k];
            }
            assert_int_equal(got.c32[m * N + n], c32);
            assert_int_equal(got.c16[m * N + n], c16);
            assert_true(got.ch[m * N + n] == (float)ch);
        }
    cudaFree(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fragments_lie_where_the_wrappers_say)};
    return cmocka_run_group_tests_name("tensor cores", tests, NULL, NULL);
}
