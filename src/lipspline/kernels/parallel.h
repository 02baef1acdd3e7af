/* Work sharing without an OpenMP runtime of our own.
 *
 * Two runtimes in one process fight for the cores, so the work runs on the pool torch already has: Python looks up
 * GOMP_parallel among the libraries torch is linked with and hands the address to lipspline_use_pool. Without it, or in
 * a forked child (where the pool's threads no longer exist), everything runs on the calling thread.
 *
 * A job is cut into items whose number depends on its sizes alone. Threads take the next item until none is left; an item
 * writes only to its own part of the output. The result is therefore the same, bit for bit, whatever the thread count.
 */
#ifndef LIPSPLINE_PARALLEL_H
#define LIPSPLINE_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

typedef void (*item_fn)(const void *job, int64_t item, void *scratch);

/* Run item_fn for 0 <= item < items; each thread has `scratch` bytes of its own. Returns 0, or -1 if memory ran out. */
int lipspline_share(item_fn run, const void *job, int64_t items, size_t scratch, int threads);

#endif
