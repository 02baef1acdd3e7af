/* The gradient of a ridge energy, W^T sigma(W x): a bank of k x k filters, a spline per filter, and the adjoint bank.
 *
 * The first `even` filters are even under x -> -x, the others are odd, so that of their k * k taps only the first half and
 * the middle one are stored. Taps that mirror each other meet sums or differences of the same two pixels, which are
 * formed once for all filters: half of the products.
 *
 * Responses live only in the first cache: those of all channels on TILE pixels of a row are computed, pass through their
 * splines, and are spread at once. For both directions the innermost loop keeps 4 x 3 vectors of sums in registers: four
 * channels times TILE pixels when responses are gathered, four taps times TILE pixels when they are spread.
 *
 * An item is a band of rows of one image. It adds into a copy of its own of the rows that it reaches, and the copies
 * are summed at the end, so that the result does not depend on the number of threads.
 */
#include <stdint.h>
#include <string.h>

#include "instruction_set.h"
#include "parallel.h"

#define QUAD 4
#define VECTORS 3
#define WIDTH 8
#define TILE (VECTORS * WIDTH)

typedef struct {
    const float *x, *e;  /* (images, height + k - 1, stride): k / 2 zeros before, and zeros behind up to stride */
    const float *gather; /* (channels / QUAD, half, QUAD) */
    const float *spread; /* (half / QUAD rounded up, channels, QUAD), zeros for taps beyond */
    const float *tables; /* (groups, channels, regions, 2): intercept and slope */
    const float *scale;  /* (groups, channels) */
    const float *weights; /* (images, channels, height, width), or NULL for ones */
    float *parts;        /* (images, bands, rows + k - 1, stride) */
    float *y;            /* (images, height, width) */
    float *products;     /* (images, channels, half, WIDTH) */
    float *sums;         /* (images, channels, regions, 2) */
    float *by_weights;   /* (images, channels, height, width), or NULL */
    const float *constants; /* (groups, channels, regions): of the potentials */
    double *energies;       /* (images, bands) */
    float offset;
    int64_t images, groups, height, width, stride, channels, even, regions, k, half, rows, bands;
} job_t;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#if X86
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline))

/* folded (2, half, TILE): sums and differences of the pixels at mirrored taps; x points at the first tap. */
TARGET INLINE void fold_tile(const job_t *job, const float *x, float *folded) {
    const int64_t k = job->k, half = job->half;
    float *sums = folded, *differences = folded + half * TILE;
    for (int64_t i = 0, tap = 0; i <= k / 2; i++)
        for (int64_t j = 0; j < k && tap < half; j++, tap++) {
            const float *here = x + i * job->stride + j, *there = x + (k - 1 - i) * job->stride + (k - 1 - j);
            const int middle = tap == half - 1;
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; v++) {
                const __m256 p = _mm256_loadu_ps(here + v * WIDTH), q = _mm256_loadu_ps(there + v * WIDTH);
                _mm256_storeu_ps(sums + tap * TILE + v * WIDTH, middle ? p : _mm256_add_ps(p, q));
                _mm256_storeu_ps(differences + tap * TILE + v * WIDTH, _mm256_sub_ps(p, q));
            }
        }
}

/* z (channels, TILE): the responses. */
TARGET INLINE void gather_tile(const job_t *job, const float *folded, float *z) {
    const int64_t half = job->half;
    const float *w = job->gather;
    for (int64_t c = 0; c < job->channels; c += QUAD) {
        const float *x = folded + (c < job->even ? 0 : half * TILE);
        __m256 sum[QUAD][VECTORS];
        for (int q = 0; q < QUAD; q++)
            for (int v = 0; v < VECTORS; v++) sum[q][v] = _mm256_setzero_ps();
        for (int64_t tap = 0; tap < half; tap++, x += TILE, w += QUAD) {
            const __m256 left = _mm256_loadu_ps(x), middle = _mm256_loadu_ps(x + WIDTH),
                         right = _mm256_loadu_ps(x + 2 * WIDTH);
#pragma GCC unroll 4
            for (int q = 0; q < QUAD; q++) {
                const __m256 factor = _mm256_broadcast_ss(w + q);
                sum[q][0] = _mm256_fmadd_ps(factor, left, sum[q][0]);
                sum[q][1] = _mm256_fmadd_ps(factor, middle, sum[q][1]);
                sum[q][2] = _mm256_fmadd_ps(factor, right, sum[q][2]);
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < QUAD; q++)
            for (int v = 0; v < VECTORS; v++) _mm256_storeu_ps(z + (c + q) * TILE + v * WIDTH, sum[q][v]);
    }
}

/* sum (QUAD, VECTORS): what channels first ... end - 1 bring to four taps. */
TARGET INLINE void spread_quad(const float *w, const float *z, int64_t first, int64_t end, __m256 sum[QUAD][VECTORS]) {
    for (int q = 0; q < QUAD; q++)
        for (int v = 0; v < VECTORS; v++) sum[q][v] = _mm256_setzero_ps();
    for (int64_t c = first; c < end; c++) {
        const float *row = z + c * TILE, *factors = w + c * QUAD;
        const __m256 left = _mm256_loadu_ps(row), middle = _mm256_loadu_ps(row + WIDTH),
                     right = _mm256_loadu_ps(row + 2 * WIDTH);
#pragma GCC unroll 4
        for (int q = 0; q < QUAD; q++) {
            const __m256 factor = _mm256_broadcast_ss(factors + q);
            sum[q][0] = _mm256_fmadd_ps(factor, left, sum[q][0]);
            sum[q][1] = _mm256_fmadd_ps(factor, middle, sum[q][1]);
            sum[q][2] = _mm256_fmadd_ps(factor, right, sum[q][2]);
        }
    }
}

TARGET INLINE void add_to(float *to, __m256 value) { _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), value)); }

/* Add what the responses z (channels, TILE) spread to; y points at the first tap of the first pixel. */
TARGET INLINE void spread_tile(const job_t *job, const float *z, float *y) {
    const int64_t k = job->k, half = job->half;
    const float *w = job->spread;
    for (int64_t first = 0; first < half; first += QUAD, w += QUAD * job->channels) {
        __m256 even[QUAD][VECTORS], odd[QUAD][VECTORS];
        spread_quad(w, z, 0, job->even, even);
        spread_quad(w, z, job->even, job->channels, odd);
        for (int q = 0; q < QUAD && first + q < half; q++) {
            const int64_t i = (first + q) / k, j = (first + q) % k;
            float *here = y + i * job->stride + j, *there = y + (k - 1 - i) * job->stride + (k - 1 - j);
            if (first + q == half - 1)
                for (int v = 0; v < VECTORS; v++) add_to(here + v * WIDTH, even[q][v]);
            else
                for (int v = 0; v < VECTORS; v++) {
                    add_to(here + v * WIDTH, _mm256_add_ps(even[q][v], odd[q][v]));
                    add_to(there + v * WIDTH, _mm256_sub_ps(even[q][v], odd[q][v]));
                }
        }
    }
}

/* Lanes of vector v that lie before pixel `inside` of the tile. */
TARGET INLINE __m256 mask_of(int64_t inside, int v) {
    const __m256i left = _mm256_set1_epi32((int)smaller(inside, TILE) - v * WIDTH);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}

/* Twice the region clamp(floor(scale z + offset)) of each element; NaN falls into region 0. */
TARGET INLINE __m256i locate(__m256 value, __m256 scale, __m256 offset, __m256 last) {
    const __m256 t = _mm256_add_ps(_mm256_mul_ps(scale, value), offset);
    return _mm256_slli_epi32(_mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(t, _mm256_setzero_ps()), last)), 1);
}

/* Eight weights of channel c, 0 outside the mask; `weights` points at those of the tile in channel 0. */
TARGET INLINE __m256 weights_of(const job_t *job, const float *weights, int64_t c, int v, __m256 keep) {
    return _mm256_maskload_ps(weights + c * job->height * job->width + v * WIDTH, _mm256_castps_si256(keep));
}

/* z = w (b_i + s_i z) in the region i of each element with its weight w, and 0 from pixel `inside` on. */
TARGET INLINE void bend_tile(const job_t *job, const float *tables, const float *scale, const float *weights,
                             int64_t inside, float *z) {
    const __m256 offset = _mm256_set1_ps(job->offset), last = _mm256_set1_ps((float)(job->regions - 1));
    for (int64_t c = 0; c < job->channels; c++) {
        const float *table = tables + c * job->regions * 2;
        const __m256 factor = _mm256_broadcast_ss(scale + c);
        for (int v = 0; v < VECTORS; v++) {
            float *at = z + c * TILE + v * WIDTH;
            const __m256 value = _mm256_loadu_ps(at);
            const __m256i pair = locate(value, factor, offset, last);
            const __m256 b = _mm256_i32gather_ps(table, pair, 4), s = _mm256_i32gather_ps(table + 1, pair, 4);
            const __m256 keep = mask_of(inside, v), bent = _mm256_add_ps(b, _mm256_mul_ps(s, value));
            _mm256_storeu_ps(at, weights ? _mm256_mul_ps(weights_of(job, weights, c, v, keep), bent)
                                         : _mm256_and_ps(keep, bent));
        }
    }
}

TARGET static void band_of(const void *what, int64_t item, void *scratch) {
    const job_t *job = what;
    const int64_t image = item / job->bands, band = item % job->bands, group = job->groups == 1 ? 0 : image;
    const int64_t first = band * job->rows, end = smaller(first + job->rows, job->height);
    const int64_t part_size = (job->rows + job->k - 1) * job->stride;
    const float *x = job->x + image * (job->height + job->k - 1) * job->stride;
    const float *tables = job->tables + group * job->channels * job->regions * 2;
    const float *scale = job->scale + group * job->channels;
    const float *weights = job->weights ? job->weights + image * job->channels * job->height * job->width : NULL;
    float *part = job->parts + item * part_size, *folded = scratch, *z = folded + 2 * job->half * TILE;
    memset(part, 0, (size_t)part_size * sizeof(float));
    for (int64_t row = first; row < end; row++)
        for (int64_t column = 0; column < job->width; column += TILE) {
            fold_tile(job, x + row * job->stride + column, folded);
            gather_tile(job, folded, z);
            bend_tile(job, tables, scale, weights ? weights + row * job->width + column : NULL, job->width - column, z);
            spread_tile(job, z, part + (row - first) * job->stride + column);
        }
}

/* The sum of the potentials c_i + z (b_i + s_i z / 2) of a tile, added to two vectors of four doubles. */
TARGET INLINE void add_potentials(const job_t *job, const float *tables, const float *constants, const float *scale,
                                  int64_t inside, const float *z, __m256d sum[2]) {
    const __m256 offset = _mm256_set1_ps(job->offset), last = _mm256_set1_ps((float)(job->regions - 1));
    const __m256 half = _mm256_set1_ps(0.5f);
    for (int64_t c = 0; c < job->channels; c++) {
        const float *table = tables + c * job->regions * 2, *constant = constants + c * job->regions;
        const __m256 factor = _mm256_broadcast_ss(scale + c);
        for (int v = 0; v < VECTORS; v++) {
            const __m256 value = _mm256_loadu_ps(z + c * TILE + v * WIDTH);
            const __m256i pair = locate(value, factor, offset, last);
            const __m256 b = _mm256_i32gather_ps(table, pair, 4), s = _mm256_i32gather_ps(table + 1, pair, 4);
            const __m256 a = _mm256_i32gather_ps(constant, _mm256_srli_epi32(pair, 1), 4);
            const __m256 slope = _mm256_add_ps(b, _mm256_mul_ps(_mm256_mul_ps(half, s), value));
            const __m256 kept = _mm256_and_ps(mask_of(inside, v), _mm256_add_ps(a, _mm256_mul_ps(value, slope)));
            sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(kept)));
            sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(kept, 1)));
        }
    }
}

TARGET static void energy_of(const void *what, int64_t item, void *scratch) {
    const job_t *job = what;
    const int64_t image = item / job->bands, band = item % job->bands, group = job->groups == 1 ? 0 : image;
    const int64_t first = band * job->rows, end = smaller(first + job->rows, job->height);
    const float *x = job->x + image * (job->height + job->k - 1) * job->stride;
    const float *tables = job->tables + group * job->channels * job->regions * 2;
    const float *constants = job->constants + group * job->channels * job->regions;
    const float *scale = job->scale + group * job->channels;
    float *folded = scratch, *z = folded + 2 * job->half * TILE;
    __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (int64_t row = first; row < end; row++)
        for (int64_t column = 0; column < job->width; column += TILE) {
            fold_tile(job, x + row * job->stride + column, folded);
            gather_tile(job, folded, z);
            add_potentials(job, tables, constants, scale, job->width - column, z, sum);
        }
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(sum[0], sum[1]));
    job->energies[item] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/* With responses z and u of x and e and weights w: sums of (w u, w u z) by region, by_weights = u sigma(z), then z becomes
 * w sigma(z) and u becomes w sigma'(z) u. */
TARGET INLINE void bend_pair(const job_t *job, const float *tables, const float *scale, const float *weights,
                             float *by_weights, int64_t inside, float *z, float *u, float *sums) {
    const __m256 offset = _mm256_set1_ps(job->offset), last = _mm256_set1_ps((float)(job->regions - 1));
    for (int64_t c = 0; c < job->channels; c++) {
        const float *table = tables + c * job->regions * 2;
        float *sum = sums + c * job->regions * 2;
        const __m256 factor = _mm256_broadcast_ss(scale + c);
        for (int v = 0; v < VECTORS; v++) {
            float *zs = z + c * TILE + v * WIDTH, *us = u + c * TILE + v * WIDTH;
            const __m256 keep = mask_of(inside, v), value = _mm256_loadu_ps(zs), other = _mm256_loadu_ps(us);
            const __m256i pair = locate(value, factor, offset, last);
            const __m256 b = _mm256_i32gather_ps(table, pair, 4), s = _mm256_i32gather_ps(table + 1, pair, 4);
            const __m256 bent = _mm256_and_ps(keep, _mm256_add_ps(b, _mm256_mul_ps(s, value)));
            const __m256 own = weights ? weights_of(job, weights, c, v, keep) : _mm256_and_ps(keep, _mm256_set1_ps(1.0f));
            const __m256 weight = _mm256_mul_ps(own, other);
            if (by_weights)
                _mm256_maskstore_ps(by_weights + c * job->height * job->width + v * WIDTH, _mm256_castps_si256(keep),
                                    _mm256_mul_ps(other, bent));
            int32_t at[WIDTH];
            float first[WIDTH], second[WIDTH];
            _mm256_storeu_si256((__m256i *)at, pair);
            _mm256_storeu_ps(first, weight);
            _mm256_storeu_ps(second, _mm256_mul_ps(weight, value));
            for (int n = 0; n < WIDTH; n++) sum[at[n]] += first[n], sum[at[n] + 1] += second[n];
            _mm256_storeu_ps(zs, _mm256_mul_ps(own, bent));
            _mm256_storeu_ps(us, _mm256_mul_ps(s, weight));
        }
    }
}

#define TAPS 3
/* products (channels, half, WIDTH) += z (channels, TILE) times folded (half, TILE), lane by lane. */
TARGET INLINE void multiply_tile(const job_t *job, const float *z, const float *folded, float *products) {
    const int64_t half = job->half;
    for (int64_t c = 0; c < job->channels; c += QUAD) {
        const float *x = folded + (c < job->even ? 0 : half * TILE);
        int64_t tap = 0;
        for (; tap + TAPS <= half; tap += TAPS) {
            __m256 sum[QUAD][TAPS];
#pragma GCC unroll 4
            for (int q = 0; q < QUAD; q++)
#pragma GCC unroll 3
                for (int t = 0; t < TAPS; t++)
                    sum[q][t] = _mm256_loadu_ps(products + ((c + q) * half + tap + t) * WIDTH);
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; v++) {
                const float *from = x + tap * TILE + v * WIDTH;
                const __m256 left = _mm256_loadu_ps(from), middle = _mm256_loadu_ps(from + TILE),
                             right = _mm256_loadu_ps(from + 2 * TILE);
#pragma GCC unroll 4
                for (int q = 0; q < QUAD; q++) {
                    const __m256 factor = _mm256_loadu_ps(z + (c + q) * TILE + v * WIDTH);
                    sum[q][0] = _mm256_fmadd_ps(factor, left, sum[q][0]);
                    sum[q][1] = _mm256_fmadd_ps(factor, middle, sum[q][1]);
                    sum[q][2] = _mm256_fmadd_ps(factor, right, sum[q][2]);
                }
            }
#pragma GCC unroll 4
            for (int q = 0; q < QUAD; q++)
#pragma GCC unroll 3
                for (int t = 0; t < TAPS; t++)
                    _mm256_storeu_ps(products + ((c + q) * half + tap + t) * WIDTH, sum[q][t]);
        }
        for (; tap < half; tap++)
            for (int q = 0; q < QUAD; q++) {
                float *to = products + ((c + q) * half + tap) * WIDTH;
                __m256 sum = _mm256_loadu_ps(to);
                for (int v = 0; v < VECTORS; v++)
                    sum = _mm256_fmadd_ps(_mm256_loadu_ps(z + (c + q) * TILE + v * WIDTH),
                                          _mm256_loadu_ps(x + tap * TILE + v * WIDTH), sum);
                _mm256_storeu_ps(to, sum);
            }
    }
}

/* Derivatives of <W e, sigma(W x)> for one image. */
TARGET static void pairing_of(const void *what, int64_t image, void *scratch) {
    const job_t *job = what;
    const int64_t group = job->groups == 1 ? 0 : image, before = image * (job->height + job->k - 1) * job->stride;
    const float *tables = job->tables + group * job->channels * job->regions * 2;
    const float *scale = job->scale + group * job->channels;
    float *x = scratch, *e = x + 2 * job->half * TILE, *z = e + 2 * job->half * TILE, *u = z + job->channels * TILE;
    const int64_t plane = image * job->channels * job->height * job->width;
    float *products = job->products + image * job->channels * job->half * WIDTH;
    float *sums = job->sums + image * job->channels * job->regions * 2;
    memset(products, 0, (size_t)(job->channels * job->half * WIDTH) * sizeof(float));
    memset(sums, 0, (size_t)(job->channels * job->regions * 2) * sizeof(float));
    for (int64_t row = 0; row < job->height; row++)
        for (int64_t column = 0; column < job->width; column += TILE) {
            fold_tile(job, job->x + before + row * job->stride + column, x);
            fold_tile(job, job->e + before + row * job->stride + column, e);
            gather_tile(job, x, z);
            gather_tile(job, e, u);
            const int64_t at = plane + row * job->width + column;
            bend_pair(job, tables, scale, job->weights ? job->weights + at : NULL,
                      job->by_weights ? job->by_weights + at : NULL, job->width - column, z, u, sums);
            multiply_tile(job, u, x, products);
            multiply_tile(job, z, e, products);
        }
}

int lipspline_has_ridge(void) { return lipspline_instruction_set() > 0 && __builtin_cpu_supports("fma"); }
#else
static void band_of(const void *what, int64_t item, void *scratch) { (void)what, (void)item, (void)scratch; }
static void pairing_of(const void *what, int64_t item, void *scratch) { (void)what, (void)item, (void)scratch; }
static void energy_of(const void *what, int64_t item, void *scratch) { (void)what, (void)item, (void)scratch; }

int lipspline_has_ridge(void) { return 0; }
#endif

/* A row of y is the sum of the parts that reach it, in the order of the bands. */
static void row_of(const void *what, int64_t item, void *scratch) {
    (void)scratch;
    const job_t *job = what;
    const int64_t image = item / job->height, row = item % job->height, before = job->k / 2, reach = job->rows + job->k - 1;
    float *y = job->y + item * job->width;
    memset(y, 0, (size_t)job->width * sizeof(float));
    for (int64_t band = 0; band < job->bands; band++) {
        const int64_t inside = row + before - band * job->rows;
        if (inside < 0 || inside >= reach) continue;
        const float *part = job->parts + ((image * job->bands + band) * reach + inside) * job->stride + before;
        for (int64_t j = 0; j < job->width; j++) y[j] += part[j];
    }
}

static int gradient(job_t job, int threads) {
    job.half = (job.k * job.k + 1) / 2;
    job.bands = (job.height + job.rows - 1) / job.rows;
    const size_t scratch = (size_t)((2 * job.half + job.channels) * TILE) * sizeof(float);
    const int failed = lipspline_share(band_of, &job, job.images * job.bands, scratch, threads);
    return failed ? failed : lipspline_share(row_of, &job, job.images * job.height, 0, threads);
}

static int pairing(job_t job, int threads) {
    job.half = (job.k * job.k + 1) / 2;
    const size_t scratch = (size_t)((4 * job.half + 2 * job.channels) * TILE) * sizeof(float);
    return lipspline_share(pairing_of, &job, job.images, scratch, threads);
}

/* y = W^T sigma(W x). Nothing may be empty; only if lipspline_has_ridge. Returns 0, or -1 if memory ran out. */
int lipspline_ridge_gradient(const float *x, const float *gather, const float *spread, const float *tables,
                             const float *scale, double offset, int64_t images, int64_t groups, int64_t height,
                             int64_t width, int64_t stride, int64_t channels, int64_t even, int64_t regions, int64_t k,
                             int64_t rows, float *parts, float *y, int threads) {
    const job_t job = {.x = x, .gather = gather, .spread = spread, .tables = tables, .scale = scale, .parts = parts,
                       .y = y, .offset = (float)offset, .images = images, .groups = groups, .height = height,
                       .width = width, .stride = stride, .channels = channels, .even = even, .regions = regions, .k = k,
                       .rows = rows};
    return gradient(job, threads);
}

/* y = W^T (w sigma(W x)) with a weight for each response. As above. */
int lipspline_weighted_ridge_gradient(const float *x, const float *gather, const float *spread, const float *tables,
                                      const float *scale, const float *weights, double offset, int64_t images,
                                      int64_t groups, int64_t height, int64_t width, int64_t stride, int64_t channels,
                                      int64_t even, int64_t regions, int64_t k, int64_t rows, float *parts, float *y,
                                      int threads) {
    const job_t job = {.x = x, .gather = gather, .spread = spread, .tables = tables, .scale = scale, .weights = weights,
                       .parts = parts, .y = y, .offset = (float)offset, .images = images, .groups = groups,
                       .height = height, .width = width, .stride = stride, .channels = channels, .even = even,
                       .regions = regions, .k = k, .rows = rows};
    return gradient(job, threads);
}

/* The energies of bands of rows, in float64: each is the sum of its potentials. As above. */
int lipspline_ridge_energy(const float *x, const float *gather, const float *tables, const float *constants,
                           const float *scale, double offset, int64_t images, int64_t groups, int64_t height,
                           int64_t width, int64_t stride, int64_t channels, int64_t even, int64_t regions, int64_t k,
                           int64_t rows, double *energies, int threads) {
    const job_t job = {.x = x, .gather = gather, .tables = tables, .constants = constants, .scale = scale,
                       .energies = energies, .offset = (float)offset, .images = images, .groups = groups,
                       .height = height, .width = width, .stride = stride, .channels = channels, .even = even,
                       .regions = regions, .k = k, .half = (k * k + 1) / 2, .rows = rows,
                       .bands = (height + rows - 1) / rows};
    const size_t scratch = (size_t)((2 * job.half + job.channels) * TILE) * sizeof(float);
    return lipspline_share(energy_of, &job, job.images * job.bands, scratch, threads);
}

/* Derivatives of <W e, sigma(W x)> of each image by the filters (to be summed over the last dimension of `products`) and by
 * intercepts and slopes (`sums`), for training. As above. */
int lipspline_ridge_pairing(const float *x, const float *e, const float *gather, const float *tables, const float *scale,
                            double offset, int64_t images, int64_t groups, int64_t height, int64_t width, int64_t stride,
                            int64_t channels, int64_t even, int64_t regions, int64_t k, float *products, float *sums,
                            int threads) {
    const job_t job = {.x = x, .e = e, .gather = gather, .tables = tables, .scale = scale, .products = products,
                       .sums = sums, .offset = (float)offset, .images = images, .groups = groups, .height = height,
                       .width = width, .stride = stride, .channels = channels, .even = even, .regions = regions, .k = k};
    return pairing(job, threads);
}

/* The same of <W e, w sigma(W x)> with a weight for each response, and the derivative by the weights. As above. */
int lipspline_weighted_ridge_pairing(const float *x, const float *e, const float *gather, const float *tables,
                                     const float *scale, const float *weights, double offset, int64_t images,
                                     int64_t groups, int64_t height, int64_t width, int64_t stride, int64_t channels,
                                     int64_t even, int64_t regions, int64_t k, float *products, float *sums,
                                     float *by_weights, int threads) {
    const job_t job = {.x = x, .e = e, .gather = gather, .tables = tables, .scale = scale, .weights = weights,
                       .products = products, .sums = sums, .by_weights = by_weights, .offset = (float)offset,
                       .images = images, .groups = groups, .height = height, .width = width, .stride = stride,
                       .channels = channels, .even = even, .regions = regions, .k = k};
    return pairing(job, threads);
}
