/* Functions of the real driver libraries, which lie at a path that only we name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>

#include "hooks.h"

/* A preload library is not in the library's place, so there the ordinary name is the real one; and
 * names are asked of the real dlsym, since ours would answer with our own hooks. */
#ifdef ALLOT_PRELOAD
#define CUDA_FILE "libcuda.so.1"
#define NVML_FILE "libnvidia-ml.so.1"
void *allot_plain_dlsym(void *handle, const char *name);
#define dlsym allot_plain_dlsym
#else
#define CUDA_FILE ALLOT_PREFIX "/libcuda.real"
#define NVML_FILE ALLOT_PREFIX "/libnvidia-ml.real"
#endif

static void *find(void *_Atomic *library, const char *file, const char *name)
{
    void *handle = atomic_load(library);
    if (!handle)
        atomic_store(library, handle = dlopen(file, RTLD_NOW | RTLD_LOCAL));
    return handle ? dlsym(handle, name) : 0;
}

void *allot_cuda_function(const char *name)
{
    static void *_Atomic library;
    return find(&library, CUDA_FILE, name);
}

void *allot_nvml_function(const char *name)
{
    static void *_Atomic library;
    return find(&library, NVML_FILE, name);
}

static void *of_row(allot_hook *hook, void *(*function)(const char *))
{
    void *real = atomic_load_explicit(&hook->real, memory_order_acquire);
    if (real || atomic_load(&hook->is_sought))
        return real;
    real = function(hook->symbol);
    atomic_store_explicit(&hook->real, real, memory_order_release);
    /* Whether it was found or not: the driver file does not change under a process. */
    if (function("cuInit") || function("nvmlInit_v2"))
        atomic_store(&hook->is_sought, 1);
    return real;
}

#ifndef ALLOT_NO_CUDA
void *allot_real_cuda(unsigned row) { return of_row(&allot_cuda_hooks[row], allot_cuda_function); }
#endif
#ifndef ALLOT_NO_NVML
void *allot_real_nvml(unsigned row) { return of_row(&allot_nvml_hooks[row], allot_nvml_function); }
#endif
