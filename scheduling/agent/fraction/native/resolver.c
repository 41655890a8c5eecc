/* cuGetProcAddress, by which the runtime finds everything: the driver chooses a variant, and the
 * hook of that same variant is handed out, never another. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "memory.h"
#include "rules_cuda.h"

#define FLAG_PER_THREAD 2

/* The real function of a row, if it has been asked for: found anew each time would cost most. */
static void *real_of(unsigned row) { return allot_real_cuda(row); }

/* By address first: from CUDA 12 on cuGraphInstantiate is answered with the function of another name.
 * Only a driver that does not hand out what it exports is judged by name and version. */
static void *substitute(const char *base, void *chosen, int version, cuuint64_t flags)
{
    allot_hook *newest = NULL;
    int is_per_thread = (flags & FLAG_PER_THREAD) != 0, is_known = 0;
    for (unsigned row = 0; row < allot_cuda_num_hooks; row++)
        if (real_of(row) == chosen)
            return allot_cuda_hooks[row].hook;
    for (unsigned row = 0; row < allot_cuda_num_hooks; row++) {
        allot_hook *hook = &allot_cuda_hooks[row];
        if (strcmp(hook->base, base) != 0)
            continue;
        is_known = 1;
        if (!real_of(row) || hook->version > version || hook->is_per_thread > is_per_thread)
            continue;
        /* A twin for per-thread streams, where there is one, and of these the newest. */
        if (!newest || hook->is_per_thread > newest->is_per_thread ||
            (hook->is_per_thread == newest->is_per_thread && hook->version >= newest->version))
            newest = hook;
    }
    Dl_info info;
    /* A variant that we do not know, newer than this library, has a name of its own. */
    if (!is_known || (dladdr(chosen, &info) && info.dli_saddr == chosen))
        return chosen;
    return newest ? newest->hook : chosen;
}

static void replace(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (symbol && *symbol && pfn && *pfn)
        *pfn = substitute(symbol, *pfn, version, flags);
}

CUresult allot_get_proc_address(allot_get_proc_address_fn real, const char *symbol, void **pfn,
                                int version, cuuint64_t flags)
{
    CUresult outcome = real(symbol, pfn, version, flags);
    if (outcome == CUDA_SUCCESS)
        replace(symbol, pfn, version, flags);
    return outcome;
}

CUresult allot_get_proc_address2(allot_get_proc_address2_fn real, const char *symbol, void **pfn,
                                 int version, cuuint64_t flags, int *status)
{
    CUresult outcome = real(symbol, pfn, version, flags, status);
    if (outcome == CUDA_SUCCESS)
        replace(symbol, pfn, version, flags);
    return outcome;
}
