/* A libcuda that writes down what CUDA's runtime asks for: how the traces beside it were made.
 *
 *     cc -shared -fPIC -w -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 recorder.c -o libcuda.so.1
 *     TRACE=out.txt CUDA=12090 LD_LIBRARY_PATH=. python3 -c \
 *       "import ctypes; l = ctypes.CDLL('libcudart.so.12'); l.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))"
 *
 * Each name is answered with a function that does nothing, so the runtime asks for all of them and
 * then crashes, having got nothing from the driver's undocumented tables. A line a request: name
 * (- for the empty one), version, flags.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long nothing(void) { return 0; }

int cuInit(unsigned flags) { return 0; }

int cuDriverGetVersion(int *version)
{
    *version = atoi(getenv("CUDA"));
    return 0;
}

int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);

int cuGetProcAddress(const char *name, void **pfn, int version, unsigned long long flags)
{
    static FILE *trace;
    if (!trace)
        trace = fopen(getenv("TRACE"), "w");
    fprintf(trace, "%s %d %llu\n", *name ? name : "-", version, flags);
    fflush(trace);
    *pfn = !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
           : !strcmp(name, "cuInit")           ? (void *)cuInit
           : strcmp(name, "cuGetProcAddress")  ? (void *)nothing
           : version >= 12000                  ? (void *)cuGetProcAddress_v2
                                               : (void *)cuGetProcAddress;
    return *name ? 0 : 500;
}

int cuGetProcAddress_v2(const char *name, void **pfn, int version, unsigned long long flags,
                        int *status)
{
    int result = cuGetProcAddress(name, pfn, version, flags);
    if (status)
        *status = result ? 1 : 0;
    return result;
}
