/* Convolution of channels-last images with 3 x 3 kernels and zeros around them, by Winograd's algorithm F(4 x 4, 3 x 3).
 *
 * Along one axis, four outputs of a kernel of three are products of polynomials, computed from their values at six points:
 *
 *     y = A^T [(G w) (B^T d)],    d six inputs, w three weights, y four outputs, points 0, +-a, +-b and infinity.
 *
 * Over a tile of 4 x 4 outputs both axes are transformed, and in each of the 36 points the channels are mixed by a matrix
 * product: 36 products where the definition takes 144. With a^2 = 1/2 and b^2 = 2 (instead of the usual 1 and 4) the
 * transforms are balanced and the round-off is about twice that of the definition.
 *
 * A tile is computed from its own 6 x 6 inputs alone and in one fixed order: a pixel's result depends neither on threads
 * nor on the size of the image, only on where it lies within its tile of 4 x 4.
 *
 * The gradient with respect to w is the same product read backwards: with g the gradient of the 4 x 4 outputs, that of
 * G w G^T is [(A g A^T) (B^T d B)], summed over tiles. The one with respect to the image is a convolution again.
 *
 * AVX2 only: what other machines have is left to torch.
 */
#include <stdint.h>
#include <string.h>

#include "instruction_set.h"
#include "parallel.h"

#define TILE 4   /* outputs of a tile along an axis */
#define FIELD 6  /* inputs of a tile along an axis, and points */
#define POINTS (FIELD * FIELD)
#define TAPS 3   /* of a kernel along an axis */
#define TILES 24 /* of an item; their transforms stay in the cache. A multiple of ROWS */
#define ROWS 6   /* tiles of a matrix product at a time: ROWS x 2 vectors of sums fill the registers */
#define LANES 8  /* numbers in a vector */
#define PANEL (2 * LANES) /* output channels of a matrix product at a time */

typedef struct {
    const float *x, *u, *bias, *g;
    float *y; /* images, or the gradients of weights: one for each part */
    int64_t height, width, in, out;
    int64_t down, across; /* tiles along the axes */
    int64_t tiles;        /* of the whole batch */
    int64_t parts;        /* of the tiles, each with a gradient of its own */
} job_t;

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Numbers between a tile at one point and at the next: a cache line more than there are, or all points of a tile would
 * compete for the same few lines of the cache. */
static int64_t point_stride(int64_t wide) { return TILES * wide + PANEL; }

static size_t scratch_size(int64_t in, int64_t out) {
    const int64_t v = up_to(in, LANES), m = up_to(out, PANEL);
    return 64 + sizeof(float) * (size_t)(POINTS * (point_stride(v) + point_stride(m)) + v + m);
}

#if X86
#include <immintrin.h>
#define TARGET __attribute__((target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 6")
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define A 0.70710678118654752f
#define B 1.41421356237309505f
#define A2 0.5f
#define B2 2.0f

/* B^T d */
TARGET INLINE void to_points(const vec d[FIELD], vec v[FIELD]) {
    const vec even_a = d[4] - B2 * d[2], odd_a = A * (d[3] - B2 * d[1]);
    const vec even_b = d[4] - A2 * d[2], odd_b = B * (d[3] - A2 * d[1]);
    v[0] = d[4] - (A2 + B2) * d[2] + A2 * B2 * d[0];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = d[5] - (A2 + B2) * d[3] + A2 * B2 * d[1];
}

/* A^T m */
TARGET INLINE void from_points(const vec m[FIELD], vec y[TILE]) {
    const vec even_a = m[1] + m[2], odd_a = A * (m[1] - m[2]), even_b = m[3] + m[4], odd_b = B * (m[3] - m[4]);
    y[0] = m[0] + even_a + even_b;
    y[1] = odd_a + odd_b;
    y[2] = A2 * even_a + B2 * even_b;
    y[3] = A2 * odd_a + B2 * odd_b + m[5];
}

/* A g */
TARGET INLINE void spread(const vec g[TILE], vec m[FIELD]) {
    const vec even_a = g[0] + A2 * g[2], odd_a = A * (g[1] + A2 * g[3]);
    const vec even_b = g[0] + B2 * g[2], odd_b = B * (g[1] + B2 * g[3]);
    m[0] = g[0];
    m[1] = even_a + odd_a;
    m[2] = even_a - odd_a;
    m[3] = even_b + odd_b;
    m[4] = even_b - odd_b;
    m[5] = g[3];
}

/* G^T u */
TARGET INLINE void to_taps(const vec u[FIELD], vec w[TAPS]) {
    const float a = -1.0f / 1.5f, b = 1.0f / 6.0f; /* over the products of distances between points */
    const vec even_a = a * (u[1] + u[2]), odd_a = a * A * (u[1] - u[2]);
    const vec even_b = b * (u[3] + u[4]), odd_b = b * B * (u[3] - u[4]);
    w[0] = u[0] + even_a + even_b;
    w[1] = odd_a + odd_b;
    w[2] = A2 * even_a + B2 * even_b + u[5];
}

TARGET INLINE vec read(const float *from, int64_t channels) {
    if (channels >= LANES) return *(const vec *)from;
    float some[LANES] = {0};
    memcpy(some, from, (size_t)channels * sizeof(float));
    return *(const vec *)some;
}

TARGET INLINE void write(float *to, vec value, int64_t channels) {
    if (channels >= LANES)
        *(vec *)to = value;
    else
        memcpy(to, &value, (size_t)channels * sizeof(float));
}

/* v (POINTS, TILES, wide): the inputs of tile t, all channels, at all points. */
TARGET static void transform_inputs(const job_t *job, int64_t tile, int64_t t, float *v, int64_t wide, const float *zero) {
    const int64_t row = tile / job->across % job->down * TILE - 1, column = tile % job->across * TILE - 1;
    const float *image = job->x + tile / (job->down * job->across) * job->height * job->width * job->in;
    const float *pixel[FIELD][FIELD];
    for (int i = 0; i < FIELD; i++)
        for (int j = 0; j < FIELD; j++) {
            const int64_t y = row + i, x = column + j;
            const int inside = y >= 0 && y < job->height && x >= 0 && x < job->width;
            pixel[i][j] = inside ? image + (y * job->width + x) * job->in : zero;
        }
    for (int64_t c = 0; c < job->in; c += LANES) {
        vec half[FIELD][FIELD];
        UNROLL for (int j = 0; j < FIELD; j++) {
            vec d[FIELD], points[FIELD];
            UNROLL for (int i = 0; i < FIELD; i++) d[i] = read(pixel[i][j] + c, job->in - c);
            to_points(d, points);
            UNROLL for (int i = 0; i < FIELD; i++) half[i][j] = points[i];
        }
        UNROLL for (int i = 0; i < FIELD; i++) {
            vec points[FIELD];
            to_points(half[i], points);
            UNROLL for (int j = 0; j < FIELD; j++) *(vec *)(v + (FIELD * i + j) * point_stride(wide) + t * wide + c) = points[j];
        }
    }
}

/* m (ROWS, PANEL) = v (ROWS, in) u (in, PANEL) */
TARGET static __attribute__((noinline)) void multiply(const float *restrict v, int64_t v_wide, const float *restrict u,
                                                      float *restrict m, int64_t m_wide, int64_t in) {
    __m256 sum[ROWS][2];
    UNROLL for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < in; k++, u += PANEL) {
        const __m256 left = _mm256_loadu_ps(u), right = _mm256_loadu_ps(u + LANES);
        UNROLL for (int i = 0; i < ROWS; i++) {
            const __m256 factor = _mm256_broadcast_ss(v + i * v_wide + k);
            sum[i][0] = _mm256_fmadd_ps(factor, left, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(factor, right, sum[i][1]);
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
        _mm256_storeu_ps(m + i * m_wide, sum[i][0]);
        _mm256_storeu_ps(m + i * m_wide + LANES, sum[i][1]);
    }
}

/* The outputs of tile t from m (POINTS, TILES, wide), as many as lie inside the image. */
TARGET static void transform_outputs(const job_t *job, int64_t tile, int64_t t, const float *m, int64_t wide) {
    const int64_t row = tile / job->across % job->down * TILE, column = tile % job->across * TILE;
    const int64_t image = tile / (job->down * job->across);
    const int64_t high = job->height - row < TILE ? job->height - row : TILE;
    const int64_t broad = job->width - column < TILE ? job->width - column : TILE;
    float *y = job->y + ((image * job->height + row) * job->width + column) * job->out;
    for (int64_t c = 0; c < job->out; c += LANES) {
        const int64_t channels = job->out - c;
        const vec bias = read(job->bias + c, channels);
        vec half[TILE][FIELD];
        UNROLL for (int j = 0; j < FIELD; j++) {
            vec points[FIELD], out[TILE];
            UNROLL for (int i = 0; i < FIELD; i++) points[i] = *(const vec *)(m + (FIELD * i + j) * point_stride(wide) + t * wide + c);
            from_points(points, out);
            UNROLL for (int i = 0; i < TILE; i++) half[i][j] = out[i];
        }
        for (int64_t i = 0; i < high; i++) {
            vec out[TILE];
            from_points(half[i], out);
            for (int64_t j = 0; j < broad; j++) write(y + (i * job->width + j) * job->out + c, out[j] + bias, channels);
        }
    }
}

TARGET static void tiles_of(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t v_wide = up_to(job->in, LANES), m_wide = up_to(job->out, PANEL), first = item * TILES;
    const int64_t v_point = point_stride(v_wide), m_point = point_stride(m_wide);
    const int64_t count = job->tiles - first < TILES ? job->tiles - first : TILES, rows = up_to(count, ROWS);
    float *v = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63), *m = v + POINTS * v_point;
    float *zero = m + POINTS * m_point;
    memset(zero, 0, (size_t)v_wide * sizeof(float));
    if (rows > count) memset(v, 0, (size_t)(POINTS * v_point) * sizeof(float)); /* rows that no tile fills */
    for (int64_t t = 0; t < count; t++) transform_inputs(job, first + t, t, v, v_wide, zero);
    for (int64_t p = 0; p < POINTS; p++)
        for (int64_t n = 0; n < m_wide; n += PANEL)
            for (int64_t t = 0; t < rows; t += ROWS)
                multiply(v + p * v_point + t * v_wide, v_wide, job->u + (p * m_wide + n) * job->in,
                         m + p * m_point + t * m_wide + n, m_wide, job->in);
    for (int64_t t = 0; t < count; t++) transform_outputs(job, first + t, t, m, m_wide);
}

/* m (POINTS, TILES, wide): the gradients of the outputs of tile t, all channels, at all points. */
TARGET static void transform_gradients(const job_t *job, int64_t tile, int64_t t, float *m, int64_t wide, const float *zero) {
    const int64_t row = tile / job->across % job->down * TILE, column = tile % job->across * TILE;
    const float *image = job->g + tile / (job->down * job->across) * job->height * job->width * job->out;
    const float *pixel[TILE][TILE];
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < TILE; j++) {
            const int inside = row + i < job->height && column + j < job->width;
            pixel[i][j] = inside ? image + ((row + i) * job->width + column + j) * job->out : zero;
        }
    for (int64_t c = 0; c < job->out; c += LANES) {
        vec half[FIELD][TILE];
        UNROLL for (int j = 0; j < TILE; j++) {
            vec g[TILE], points[FIELD];
            UNROLL for (int i = 0; i < TILE; i++) g[i] = read(pixel[i][j] + c, job->out - c);
            spread(g, points);
            UNROLL for (int i = 0; i < FIELD; i++) half[i][j] = points[i];
        }
        UNROLL for (int i = 0; i < FIELD; i++) {
            vec points[FIELD];
            spread(half[i], points);
            UNROLL for (int j = 0; j < FIELD; j++) *(vec *)(m + (FIELD * i + j) * point_stride(wide) + t * wide + c) = points[j];
        }
    }
}

/* u (rows, PANEL) += v (count, rows)^T m (count, PANEL), for a constant number of rows */
TARGET INLINE void add_products(const float *restrict v, int64_t v_wide, const float *restrict m, int64_t m_wide,
                                float *restrict u, int64_t count, const int rows) {
    __m256 sum[ROWS][2];
    UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = _mm256_loadu_ps(u + i * m_wide);
        sum[i][1] = _mm256_loadu_ps(u + i * m_wide + LANES);
    }
    for (int64_t t = 0; t < count; t++, v += v_wide, m += m_wide) {
        const __m256 left = _mm256_loadu_ps(m), right = _mm256_loadu_ps(m + LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            const __m256 factor = _mm256_broadcast_ss(v + i);
            sum[i][0] = _mm256_fmadd_ps(factor, left, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(factor, right, sum[i][1]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        _mm256_storeu_ps(u + i * m_wide, sum[i][0]);
        _mm256_storeu_ps(u + i * m_wide + LANES, sum[i][1]);
    }
}

/* u (v_wide, m_wide) += v (count, v_wide)^T m (count, m_wide) */
TARGET static __attribute__((noinline)) void accumulate(const float *v, int64_t v_wide, const float *m, int64_t m_wide,
                                                        float *u, int64_t count) {
    int64_t k = 0;
    for (; k + ROWS <= v_wide; k += ROWS)
        for (int64_t n = 0; n < m_wide; n += PANEL)
            add_products(v + k, v_wide, m + n, m_wide, u + k * m_wide + n, count, ROWS);
    for (; k < v_wide; k += 2)
        for (int64_t n = 0; n < m_wide; n += PANEL)
            add_products(v + k, v_wide, m + n, m_wide, u + k * m_wide + n, count, 2);
}

/* w (TAPS, TAPS, size) from u (POINTS, size) */
TARGET static void transform_sums(const float *u, int64_t size, float *w) {
    for (int64_t c = 0; c < size; c += LANES) {
        vec half[TAPS][FIELD];
        UNROLL for (int j = 0; j < FIELD; j++) {
            vec points[FIELD], taps[TAPS];
            UNROLL for (int i = 0; i < FIELD; i++) points[i] = *(const vec *)(u + (FIELD * i + j) * size + c);
            to_taps(points, taps);
            UNROLL for (int i = 0; i < TAPS; i++) half[i][j] = taps[i];
        }
        UNROLL for (int i = 0; i < TAPS; i++) {
            vec taps[TAPS];
            to_taps(half[i], taps);
            UNROLL for (int j = 0; j < TAPS; j++) *(vec *)(w + (TAPS * i + j) * size + c) = taps[j];
        }
    }
}

TARGET static void gradient_of_part(const void *job_, int64_t part, void *scratch) {
    const job_t *job = job_;
    const int64_t v_wide = up_to(job->in, LANES), m_wide = up_to(job->out, PANEL), size = v_wide * m_wide;
    const int64_t v_point = point_stride(v_wide), m_point = point_stride(m_wide);
    const int64_t begin = job->tiles * part / job->parts, end = job->tiles * (part + 1) / job->parts;
    float *v = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63), *m = v + POINTS * v_point;
    float *zero = m + POINTS * m_point, *u = zero + v_wide + m_wide;
    memset(v, 0, (size_t)(POINTS * (v_point + m_point + size) + v_wide + m_wide) * sizeof(float));
    for (int64_t first = begin; first < end; first += TILES) {
        const int64_t count = end - first < TILES ? end - first : TILES;
        for (int64_t t = 0; t < count; t++) {
            transform_inputs(job, first + t, t, v, v_wide, zero);
            transform_gradients(job, first + t, t, m, m_wide, zero);
        }
        for (int64_t p = 0; p < POINTS; p++)
            accumulate(v + p * v_point, v_wide, m + p * m_point, m_wide, u + p * size, count);
    }
    transform_sums(u, size, job->y + part * TAPS * TAPS * size);
}

int lipspline_has_winograd(void) { return lipspline_instruction_set() > 0 && __builtin_cpu_supports("fma"); }
#else
static void tiles_of(const void *job, int64_t item, void *scratch) { (void)job, (void)item, (void)scratch; }
static void gradient_of_part(const void *job, int64_t item, void *scratch) { tiles_of(job, item, scratch); }

int lipspline_has_winograd(void) { return 0; }
#endif

/* x (images, height, width, in) -> y (images, height, width, out); u (POINTS, out / PANEL, in, PANEL), with zeros where
 * out is no multiple of PANEL. Returns 0, or -1 if memory ran out. Nothing may be empty; only if lipspline_has_winograd. */
int lipspline_winograd(const float *x, const float *u, const float *bias, int64_t images, int64_t height, int64_t width,
                       int64_t in, int64_t out, float *y, int threads) {
    const int64_t down = (height + TILE - 1) / TILE, across = (width + TILE - 1) / TILE, tiles = images * down * across;
    const job_t job = {x, u, bias, 0, y, height, width, in, out, down, across, tiles, 1};
    return lipspline_share(tiles_of, &job, (tiles + TILES - 1) / TILES, scratch_size(in, out), threads);
}

/* The gradient of the weights: x (images, height, width, in), g (images, height, width, out) -> dw (parts, TAPS, TAPS, in up
 * to LANES, out up to PANEL), to be summed over the parts. Else as lipspline_winograd. */
int lipspline_winograd_weights(const float *x, const float *g, int64_t images, int64_t height, int64_t width, int64_t in,
                               int64_t out, int64_t parts, float *dw, int threads) {
    const int64_t down = (height + TILE - 1) / TILE, across = (width + TILE - 1) / TILE, tiles = images * down * across;
    const job_t job = {x, 0, 0, g, dw, height, width, in, out, down, across, tiles, parts};
    const size_t sums = sizeof(float) * (size_t)(POINTS * up_to(in, LANES) * up_to(out, PANEL));
    return lipspline_share(gradient_of_part, &job, parts, scratch_size(in, out) + sums, threads);
}
