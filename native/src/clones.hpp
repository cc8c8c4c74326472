// For functions that are the same on all processors: one plain source, compiled for several instruction sets, the best
// of which is chosen when the module is loaded. Products and sums are never fused and sums run in fixed lanes, so all
// versions give the same bits.
#pragma once

#if defined(PENSTOCK_HAS_CLONES)
#define PENSTOCK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PENSTOCK_CLONES
#endif
