/* The loops of piecewise_affine for one number type and one instruction set.
 *
 * Included several times by piecewise_affine.c with these macros set:
 *   REAL      float or double
 *   SINGLE    1 if REAL is float
 *   NAME(f)   the name of f for this type and instruction set
 *   TARGET    the compiler attribute that selects the instruction set
 *
 * Elements are taken in blocks of BLOCK and in two passes: first the regions of the whole block (arithmetic, which the
 * compiler vectorises), then the table accesses. Taken apart like this the long latency of an index (multiply, add, clamp,
 * convert, move to an integer register) overlaps with the accesses of other elements. In one pass it does not, and
 * backward is 1.6 times slower.
 *
 * Tables and sums are arrays of pairs, and a pair moves in one instruction: (b, s) in forward, sums of (g, g x) in
 * backward, where a region may own several pairs.
 */

typedef REAL NAME(pair) __attribute__((vector_size(2 * sizeof(REAL)), may_alias));

/* at[k] = unit * clamp(floor(scale x[k] + offset), 0, last); NaN falls into region 0. Above zero, truncation is floor.
 * `zero` is 0, but not for the compiler: against a constant it compares and masks, where one maximum would do. */
LOOP TARGET static void NAME(locate_row)(const REAL *restrict x, int n, REAL scale, REAL offset, REAL zero, REAL last,
                                         uint32_t unit, uint32_t *restrict at) {
    for (int k = 0; k < n; k++) {
        REAL t = scale * x[k] + offset;
        t = t > zero ? t : zero;
        t = t < last ? t : last;
        at[k] = (uint32_t)(int32_t)t * unit;
    }
}

/* The same where neighbours belong to different channels: element k has its own scale, and its table starts at first[k]. */
LOOP TARGET static void NAME(locate_columns)(const REAL *restrict x, int n, const REAL *restrict scale, REAL offset,
                                             REAL zero, REAL last, const uint32_t *restrict first, uint32_t *restrict at) {
    for (int k = 0; k < n; k++) {
        REAL t = scale[k] * x[k] + offset;
        t = t > zero ? t : zero;
        t = t < last ? t : last;
        at[k] = first[k] + (uint32_t)(int32_t)t;
    }
}

/* y = b + s x; y may be x */
LOOP TARGET static void NAME(apply)(const REAL *x, const uint32_t *restrict at, int n, const NAME(pair) *restrict table,
                                    REAL *y) {
    int k = 0;
#if SINGLE
    const pair_bits *bits = (const pair_bits *)table;
    for (; k + 4 <= n; k += 4) {
        const float4 p = (float4)(bits2){bits[at[k]], bits[at[k + 1]]};
        const float4 q = (float4)(bits2){bits[at[k + 2]], bits[at[k + 3]]};
        float4 xv;
        memcpy(&xv, x + k, sizeof xv);
        const float4 yv = SHUFFLE(p, q, 0, 2, 4, 6) + SHUFFLE(p, q, 1, 3, 5, 7) * xv;
        memcpy(y + k, &yv, sizeof yv);
    }
#endif
    for (; k < n; k++) {
        const NAME(pair) t = table[at[k]];
        y[k] = t[0] + t[1] * x[k];
    }
}

/* gx = s g, and sums += (g, g x). A region owns `lanes` sums, used in turn, so that neighbours in the same region do not
 * wait for one another's addition; `at` counts sums. */
TARGET static inline __attribute__((always_inline)) void NAME(apply_backward)(
    const REAL *restrict g, const REAL *restrict x, const uint32_t *restrict at, int n, const REAL *restrict s,
    NAME(pair) *restrict sums, REAL *restrict gx, const int lanes) {
    const char *slopes = (const char *)s;
    const size_t bytes = sizeof(REAL) / (size_t)lanes; /* from sums to slopes without a division */
    int k = 0;
#define SLOPE(i) (*(const REAL *)(slopes + (i) * bytes))
#if SINGLE
    pair_bits *bits = (pair_bits *)sums;
    for (; k + 4 <= n; k += 4) {
        const size_t i[4] = {at[k], at[k + 1], at[k + 2], at[k + 3]};
        float4 gv, xv;
        memcpy(&gv, g + k, sizeof gv);
        memcpy(&xv, x + k, sizeof xv);
        const float4 sv = {SLOPE(i[0]), SLOPE(i[1]), SLOPE(i[2]), SLOPE(i[3])};
        const float4 gxv = sv * gv, product = gv * xv;
        memcpy(gx + k, &gxv, sizeof gxv);
        const float4 low = SHUFFLE(gv, product, 0, 4, 1, 5), high = SHUFFLE(gv, product, 2, 6, 3, 7);
#define ADD(j, pair)                                            \
    {                                                           \
        pair_bits *sum = bits + i[j] + j % lanes;               \
        *sum = ((bits2)((float4)(bits2){*sum, 0} + (pair)))[0]; \
    }
        ADD(0, low)
        ADD(1, SHUFFLE(low, low, 2, 3, 2, 3))
        ADD(2, high)
        ADD(3, SHUFFLE(high, high, 2, 3, 2, 3))
#undef ADD
    }
#endif
    for (; k < n; k++) {
        gx[k] = SLOPE(at[k]) * g[k];
        sums[at[k] + (uint32_t)(k % lanes)] += (NAME(pair)){g[k], g[k] * x[k]};
    }
#undef SLOPE
}

LOOP TARGET static void NAME(apply_backward_lanes)(const REAL *g, const REAL *x, const uint32_t *at, int n,
                                                   const REAL *s, NAME(pair) *sums, REAL *gx) {
    NAME(apply_backward)(g, x, at, n, s, sums, gx, LANES);
}

LOOP TARGET static void NAME(apply_backward_single)(const REAL *g, const REAL *x, const uint32_t *at, int n,
                                                    const REAL *s, NAME(pair) *sums, REAL *gx) {
    NAME(apply_backward)(g, x, at, n, s, sums, gx, 1);
}

TARGET static void NAME(interleave)(const REAL *restrict b, const REAL *restrict s, int64_t n,
                                    NAME(pair) *restrict table) {
    for (int64_t i = 0; i < n; i++) table[i] = (NAME(pair)){b[i], s[i]};
}

/* totals[i] += the sums of region i, which start again from zero. */
TARGET static void NAME(flush)(NAME(pair) *restrict sums, int64_t n, int lanes, double *restrict totals) {
    for (int64_t i = 0; i < n; i++) {
        NAME(pair) sum = {0};
        for (int j = 0; j < lanes; j++) sum += sums[i * lanes + j];
        totals[2 * i] += sum[0];
        totals[2 * i + 1] += sum[1];
    }
    memset(sums, 0, (size_t)(n * lanes) * sizeof *sums);
}

/* Hand over the totals of n regions, the first of which is number `at` of all tables. */
TARGET static void NAME(deliver)(const job_t *job, int64_t chunk, int64_t at, int64_t n, const double *totals) {
    if (job->partial) {
        double *part = job->partial + 2 * (chunk * job->groups * job->channels * job->regions + at);
        memcpy(part, totals, (size_t)n * 2 * sizeof *totals);
        return;
    }
    REAL *gb = (REAL *)job->gb + at, *gs = (REAL *)job->gs + at;
    for (int64_t i = 0; i < n; i++) {
        gb[i] = (REAL)totals[2 * i];
        gs[i] = (REAL)totals[2 * i + 1];
    }
}

/* Where an item lies. */
typedef struct {
    int64_t row;          /* of the tables, of the first channel */
    int64_t channels;     /* in the band */
    int64_t chunk, begin, end; /* of the outer dimension, in column and direct items */
    int64_t at;           /* the first element of outer index 0 */
} NAME(band);

TARGET static inline NAME(band) NAME(band_of)(const job_t *job, int64_t item) {
    const int64_t chunk = item % job->chunks, band = item / job->chunks % job->bands;
    const int64_t group = item / job->chunks / job->bands, c = band * job->width;
    return (NAME(band)){group * job->channels + c,
                        smaller(job->width, job->channels - c),
                        chunk,
                        job->outer * chunk / job->chunks,
                        job->outer * (chunk + 1) / job->chunks,
                        (group * job->outer * job->channels + c) * job->inner};
}

/* ---- row items: a band of channels, over a piece of the elements of each; neighbouring channels are neighbours in
 * memory, so the wider the band the longer the stretches that are read ---- */

/* Ask for n elements early: the processor does so itself, but starts anew on every page. */
TARGET static inline void NAME(prefetch)(const REAL *place, int n) {
    for (int k = 0; k < n; k += 64 / (int)sizeof(REAL)) __builtin_prefetch(place + k, 0);
}

TARGET static inline void NAME(prefetch_to_write)(const REAL *place, int n) {
    for (int k = 0; k < n; k += 64 / (int)sizeof(REAL)) __builtin_prefetch(place + k, 1);
}

TARGET static void NAME(row_forward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, inner = job->inner, total = job->outer * inner;
    const int64_t end = total * (band.chunk + 1) / job->chunks;
    const REAL *scale = (const REAL *)job->scale + band.row;
    const REAL offset = (REAL)job->offset, zero = (REAL)job->zero, last = (REAL)(R - 1);
    NAME(pair) *table = scratch;
    uint32_t at[BLOCK];
    NAME(interleave)((const REAL *)job->b + band.row * R, (const REAL *)job->s + band.row * R, band.channels * R, table);
    for (int64_t e = total * band.chunk / job->chunks; e < end;) {
        const int64_t length = smaller(inner - e % inner, end - e);
        for (int64_t c = 0; c < band.channels; c++) {
            const int64_t place = band.at + (e / inner * job->channels + c) * inner + e % inner;
            const REAL *x = (const REAL *)job->x + place;
            REAL *y = (REAL *)job->y + place;
            for (int64_t k = 0; k < length; k += BLOCK) {
                const int n = (int)smaller(length - k, BLOCK);
                NAME(prefetch)(x + k + AHEAD, n);
                NAME(prefetch_to_write)(y + k + AHEAD, n);
                NAME(locate_row)(x + k, n, scale[c], offset, zero, last, 1, at);
                NAME(apply)(x + k, at, n, table + c * R, y + k);
            }
        }
        e += length;
    }
}

TARGET static void NAME(row_backward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, inner = job->inner, total = job->outer * inner, entries = band.channels * R;
    const int64_t end = total * (band.chunk + 1) / job->chunks;
    const int64_t patience = larger(FLUSH, 64 * R); /* so that flushing stays cheap beside summing */
    const REAL *scale = (const REAL *)job->scale + band.row, *s = (const REAL *)job->s + band.row * R;
    const REAL offset = (REAL)job->offset, zero = (REAL)job->zero, last = (REAL)(R - 1);
    const int lanes = lanes_of(job);
    double *totals = scratch;
    NAME(pair) *sums = (NAME(pair) *)(totals + 2 * entries);
    uint32_t at[BLOCK];
    int64_t pending = 0;
    memset(totals, 0, (size_t)entries * (2 * sizeof *totals + (size_t)lanes * sizeof *sums));
    for (int64_t e = total * band.chunk / job->chunks; e < end;) {
        const int64_t length = smaller(smaller(inner - e % inner, end - e), patience - pending);
        for (int64_t c = 0; c < band.channels; c++) {
            const int64_t place = band.at + (e / inner * job->channels + c) * inner + e % inner;
            const REAL *g = (const REAL *)job->g + place, *x = (const REAL *)job->x + place;
            REAL *gx = (REAL *)job->y + place;
            for (int64_t k = 0; k < length; k += BLOCK) {
                const int n = (int)smaller(length - k, BLOCK);
                NAME(prefetch)(g + k + AHEAD, n);
                NAME(prefetch)(x + k + AHEAD, n);
                NAME(prefetch_to_write)(gx + k + AHEAD, n);
                NAME(locate_row)(x + k, n, scale[c], offset, zero, last, (uint32_t)lanes, at);
                (lanes == 1 ? NAME(apply_backward_single) : NAME(apply_backward_lanes))(
                    g + k, x + k, at, n, s + c * R, sums + c * R * lanes, gx + k);
            }
        }
        e += length;
        pending += length;
        if (pending == patience) {
            NAME(flush)(sums, entries, lanes, totals);
            pending = 0;
        }
    }
    NAME(flush)(sums, entries, lanes, totals);
    NAME(deliver)(job, band.chunk, band.row * R, entries, totals);
}

/* ---- column items: a band of channels, over a piece of the outer dimension ---- */

TARGET static inline int NAME(spread)(const job_t *job, NAME(band) band, REAL *scale, uint32_t *first) {
    const int n = (int)(band.channels * job->inner);
    for (int k = 0; k < n; k++) {
        scale[k] = ((const REAL *)job->scale)[band.row + k / job->inner];
        first[k] = (uint32_t)(k / job->inner * job->regions);
    }
    return n;
}

TARGET static void NAME(columns_forward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, stride = job->channels * job->inner;
    const REAL offset = (REAL)job->offset, zero = (REAL)job->zero, last = (REAL)(R - 1);
    NAME(pair) *table = scratch;
    REAL scale[SPAN];
    uint32_t first[SPAN], at[SPAN];
    const int n = NAME(spread)(job, band, scale, first);
    NAME(interleave)((const REAL *)job->b + band.row * R, (const REAL *)job->s + band.row * R, band.channels * R, table);
    const int64_t rows = SPAN / n;
    for (int64_t o = band.begin; o < band.end; o += rows) {
        const int m = (int)smaller(rows, band.end - o);
        const REAL *x = (const REAL *)job->x + band.at + o * stride;
        REAL *y = (REAL *)job->y + band.at + o * stride;
        for (int j = 0; j < m; j++)
            NAME(locate_columns)(x + j * stride, n, scale, offset, zero, last, first, at + j * n);
        for (int j = 0; j < m; j++) NAME(apply)(x + j * stride, at + j * n, n, table, y + j * stride);
    }
}

TARGET static void NAME(columns_backward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, stride = job->channels * job->inner, entries = band.channels * R;
    const int64_t patience = larger(FLUSH, 16 * R) / 2 / job->inner;
    const REAL offset = (REAL)job->offset, zero = (REAL)job->zero, last = (REAL)(R - 1);
    double *totals = scratch;
    NAME(pair) *sums = (NAME(pair) *)(totals + 2 * entries);
    const REAL *s = (const REAL *)job->s + band.row * R;
    REAL scale[SPAN];
    uint32_t first[SPAN], at[SPAN];
    const int n = NAME(spread)(job, band, scale, first);
    memset(totals, 0, (size_t)entries * (2 * sizeof *totals + sizeof *sums));
    const int64_t rows = SPAN / n;
    int64_t pending = 0;
    for (int64_t o = band.begin; o < band.end; o += rows) {
        const int m = (int)smaller(rows, band.end - o);
        const int64_t place = band.at + o * stride;
        const REAL *g = (const REAL *)job->g + place, *x = (const REAL *)job->x + place;
        REAL *gx = (REAL *)job->y + place;
        for (int j = 0; j < m; j++)
            NAME(locate_columns)(x + j * stride, n, scale, offset, zero, last, first, at + j * n);
        for (int j = 0; j < m; j++)
            NAME(apply_backward_single)(g + j * stride, x + j * stride, at + j * n, n, s, sums, gx + j * stride);
        pending += m;
        if (pending >= patience) {
            NAME(flush)(sums, entries, 1, totals);
            pending = 0;
        }
    }
    NAME(flush)(sums, entries, 1, totals);
    NAME(deliver)(job, band.chunk, band.row * R, entries, totals);
}

/* ---- direct items: a band of channels with few elements each, straight from and to the caller's tables ---- */

TARGET static inline int64_t NAME(region_of)(REAL x, REAL scale, REAL offset, REAL last) {
    REAL t = scale * x + offset;
    t = t > 0 ? t : 0;
    return (int64_t)(t < last ? t : last);
}

TARGET static void NAME(direct_forward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, stride = job->channels * job->inner;
    const REAL *b = job->b, *s = job->s, *scale = job->scale, offset = (REAL)job->offset, last = (REAL)(R - 1);
    (void)scratch;
    for (int64_t o = band.begin; o < band.end; o++)
        for (int64_t c = 0; c < band.channels; c++)
            for (int64_t k = 0; k < job->inner; k++) {
                const int64_t at = band.at + o * stride + c * job->inner + k, row = band.row + c;
                const REAL x = ((const REAL *)job->x)[at];
                const int64_t i = row * R + NAME(region_of)(x, scale[row], offset, last);
                ((REAL *)job->y)[at] = b[i] + s[i] * x;
            }
}

TARGET static void NAME(direct_backward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(band) band = NAME(band_of)(job, item);
    const int64_t R = job->regions, stride = job->channels * job->inner;
    const REAL *s = job->s, *scale = job->scale, offset = (REAL)job->offset, last = (REAL)(R - 1);
    REAL *gb = job->gb, *gs = job->gs;
    (void)scratch;
    memset(gb + band.row * R, 0, (size_t)(band.channels * R) * sizeof *gb);
    memset(gs + band.row * R, 0, (size_t)(band.channels * R) * sizeof *gs);
    for (int64_t o = band.begin; o < band.end; o++)
        for (int64_t c = 0; c < band.channels; c++)
            for (int64_t k = 0; k < job->inner; k++) {
                const int64_t at = band.at + o * stride + c * job->inner + k, row = band.row + c;
                const REAL x = ((const REAL *)job->x)[at], g = ((const REAL *)job->g)[at];
                const int64_t i = row * R + NAME(region_of)(x, scale[row], offset, last);
                ((REAL *)job->y)[at] = s[i] * g;
                gb[i] += g;
                gs[i] += g * x;
            }
}

/* ---- reduce items: the totals of one channel over its chunks, always in the same order ---- */

TARGET static void NAME(reduce)(const void *data, int64_t row, void *scratch) {
    const job_t *job = data;
    const int64_t R = job->regions, step = job->groups * job->channels * R;
    (void)scratch;
    for (int64_t i = row * R; i < (row + 1) * R; i++) {
        double gb = 0, gs = 0;
        for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
            gb += job->partial[2 * (chunk * step + i)];
            gs += job->partial[2 * (chunk * step + i) + 1];
        }
        ((REAL *)job->gb)[i] = (REAL)gb;
        ((REAL *)job->gs)[i] = (REAL)gs;
    }
}

static const loops_t NAME(loops) = {NAME(row_forward),     NAME(row_backward),    NAME(columns_forward),
                                    NAME(columns_backward), NAME(direct_forward), NAME(direct_backward),
                                    NAME(reduce),          sizeof(REAL)};
