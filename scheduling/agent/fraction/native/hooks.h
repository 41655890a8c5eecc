/* What the generated hooks and the rules share. */
#ifndef ALLOT_HOOKS_H
#define ALLOT_HOOKS_H

#include "limits.h"
#include "region.h"

#define ALLOT_EXPORT __attribute__((visibility("default")))
#ifndef ALLOT_PREFIX
#define ALLOT_PREFIX "/run/allot"
#endif

/* One exported function: a row of the list. */
typedef struct {
    const char *base, *symbol;
    int version, is_per_thread;
    void *hook;
    void *_Atomic real; /* found when first needed */
    _Atomic int is_sought;
} allot_hook;

extern allot_hook allot_cuda_hooks[], allot_nvml_hooks[];
extern const unsigned allot_cuda_num_hooks, allot_nvml_num_hooks;

/* real.c: functions of the real library, by their row or by name; NULL if it lacks them. */
void *allot_real_cuda(unsigned row);
void *allot_real_nvml(unsigned row);
void *allot_cuda_function(const char *name);
void *allot_nvml_function(const char *name);
/* A call of a driver function that may be missing; its result, or `missing`. */
#define ALLOT_DRIVER(name, type, ...)                                                              \
    ({                                                                                             \
        static _Atomic(void *) found;                                                              \
        void *function = atomic_load_explicit(&found, memory_order_acquire);                       \
        if (!function)                                                                             \
            atomic_store_explicit(&found, function = allot_cuda_function(#name),                   \
                                  memory_order_release);                                           \
        function ? ((CUresult(*) type)function)(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND;               \
    })

/* session.c: this process's limits and region, attached when first needed. */
typedef struct {
    const allot_limits *limits;
    allot_account account;
} allot_session;
/* NULL if the limits or the region cannot be used: then nothing may be allocated. */
allot_session *allot_session_get(void);
/* In a forked child, after the session has been dropped. */
void allot_session_on_fork(void (*forget)(void));

/* Whether the driver calls us back: what it does for a call of ours is counted there. */
int allot_is_inside(void);
void allot_enter(void);
void allot_leave(void);

/* gate.c: notes the call and waits while the session is away. 0, or an error for the caller. */
int allot_gate(void);
/* turn.c: waits for this session's time on the current device. */
struct CUstream_st;
struct CUctx_st;
void allot_take_turn(struct CUstream_st *stream);
/* A context is about to go. */
void allot_turn_forget(struct CUctx_st *context);
void allot_capture_changed(int by);
/* Whether a stream of this process may be capturing; whether this one is. */
int allot_may_capture(void);
int allot_is_capturing(struct CUstream_st *stream);

#endif
