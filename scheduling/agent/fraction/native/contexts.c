/* Contexts: each process's takes memory that no call names, charged as a constant from the limits
 * file with the first context on a device. The agent says later what it really is. */
#include "memory.h"
#include "rules_cuda.h"

#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Held while contexts are made and destroyed: the handle of one that has gone may be given to the
 * next at once, whose memory must not be taken for the old one's. */
static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER;
static int num_contexts[ALLOT_MAX_GPUS];
/* The primary one, with how often it was retained; under `handles`. */
static struct { CUcontext context; int num_retained; } primary[ALLOT_MAX_GPUS];

static void forget(void)
{
    memset(num_contexts, 0, sizeof num_contexts);
    memset(primary, 0, sizeof primary);
    pthread_mutex_init(&mutex, NULL);
    pthread_mutex_init(&handles, NULL);
}

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

static _Atomic uint64_t *charged(allot_session *session, int gpu)
{
    return &session->account.map->context[gpu][session->account.slot];
}

static uint64_t measured(allot_session *session, int gpu)
{
    return atomic_load(&session->account.map->measured[gpu][session->account.slot]);
}

static int charge(allot_session *session, int gpu)
{
    uint64_t bytes = measured(session, gpu);
    if (!bytes)
        bytes = session->limits->gpus[gpu].context_bytes;
    if (!allot_reserve(gpu, bytes))
        return 0;
    atomic_store(charged(session, gpu), bytes);
    return 1;
}

void allot_contexts_settle(int gpu)
{
    allot_session *session = allot_session_get();
    if (!session || gpu < 0)
        return;
    uint64_t wanted = measured(session, gpu);
    if (__builtin_expect(!wanted || wanted == atomic_load(charged(session, gpu)), 1))
        return;
    pthread_mutex_lock(&mutex);
    uint64_t before = atomic_load(charged(session, gpu));
    if (num_contexts[gpu] && wanted != before) {
        /* It is there whether wanted or not. The note first: dying in between, all is dropped. */
        atomic_store(charged(session, gpu), wanted);
        if (wanted > before)
            allot_account_add(&session->account, (unsigned)gpu, wanted - before);
        else
            allot_account_release(&session->account, (unsigned)gpu, before - wanted);
    }
    pthread_mutex_unlock(&mutex);
}

static void note(allot_session *session, int gpu, int is_there)
{
    allot_region *map = session->account.map;
    allot_region_process *own = &map->processes[session->account.slot];
    if (is_there)
        atomic_fetch_or(&own->contexts, 1u << gpu);
    else
        atomic_fetch_and(&own->contexts, ~(1u << gpu));
}

/* Whether there is room for one more context of this process. */
static int begin(int gpu)
{
    allot_session *session = allot_session_get();
    if (!session)
        return 0;
    if (gpu < 0)
        return 1;
    pthread_mutex_lock(&mutex);
    int is_there = num_contexts[gpu] || charge(session, gpu);
    if (is_there && num_contexts[gpu]++ == 0)
        note(session, gpu, 1);
    pthread_mutex_unlock(&mutex);
    return is_there;
}

static void end(int gpu)
{
    allot_session *session = allot_session_get();
    if (!session || gpu < 0)
        return;
    pthread_mutex_lock(&mutex);
    if (num_contexts[gpu] && --num_contexts[gpu] == 0) {
        allot_give(gpu, atomic_exchange(charged(session, gpu), 0));
        note(session, gpu, 0);
    }
    pthread_mutex_unlock(&mutex);
}

CUresult allot_primary_retain(allot_primary_retain_fn real, CUcontext *context, CUdevice device)
{
    int gpu = allot_gpu_of(device);
    if (!begin(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int is_again = 0;
    pthread_mutex_lock(&handles);
    CUresult outcome = real(context, device);
    if (outcome == CUDA_SUCCESS && gpu >= 0) {
        primary[gpu].context = *context;
        is_again = primary[gpu].num_retained++ > 0;
    }
    pthread_mutex_unlock(&handles);
    if (outcome != CUDA_SUCCESS || is_again)
        end(gpu);
    return outcome;
}

/* Turns go on without it. Not under the mutex: at a turn's end kernels are waited for. */
static void leave_turns(int gpu, int is_reset)
{
    pthread_mutex_lock(&handles);
    int is_going = is_reset || primary[gpu].num_retained <= 1;
    CUcontext going = is_going ? primary[gpu].context : NULL;
    pthread_mutex_unlock(&handles);
    if (going)
        allot_turn_forget(going);
}

CUresult allot_primary_release(allot_primary_release_fn real, CUdevice device)
{
    int gpu = allot_gpu_of(device);
    if (gpu < 0)
        return real(device);
    leave_turns(gpu, 0);
    pthread_mutex_lock(&handles);
    CUresult outcome = real(device);
    int is_last = outcome == CUDA_SUCCESS && primary[gpu].num_retained == 1;
    if (outcome == CUDA_SUCCESS && primary[gpu].num_retained)
        primary[gpu].num_retained--;
    if (is_last)
        allot_forget_context(primary[gpu].context);
    pthread_mutex_unlock(&handles);
    if (is_last)
        end(gpu);
    return outcome;
}

CUresult allot_primary_reset(allot_primary_reset_fn real, CUdevice device)
{
    int gpu = allot_gpu_of(device);
    if (gpu < 0)
        return real(device);
    leave_turns(gpu, 1);
    pthread_mutex_lock(&handles);
    CUresult outcome = real(device);
    if (outcome == CUDA_SUCCESS && primary[gpu].context)
        allot_forget_context(primary[gpu].context);
    pthread_mutex_unlock(&handles);
    return outcome;
}

/* One variant's own arguments; the same around the call. */
#define CREATED(call)                                                                              \
    int gpu = allot_gpu_of(device);                                                                \
    if (!begin(gpu))                                                                               \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
    pthread_mutex_lock(&handles);                                                                  \
    CUresult outcome = (call);                                                                     \
    if (outcome == CUDA_SUCCESS)                                                                   \
        allot_keep((allot_thing){.kind = CONTEXT, .key = (uint64_t)(uintptr_t)*context,            \
                                 .gpu = gpu, .context = *context});                                \
    pthread_mutex_unlock(&handles);                                                                \
    if (outcome != CUDA_SUCCESS)                                                                   \
        end(gpu);                                                                                  \
    return outcome;

CUresult allot_ctx_create(allot_ctx_create_fn real, CUcontext *context, unsigned flags,
                          CUdevice device)
{
    CREATED(real(context, flags, device))
}

CUresult allot_ctx_create_v3(allot_ctx_create_v3_fn real, CUcontext *context, void *affinity,
                             int num_affinity, unsigned flags, CUdevice device)
{
    CREATED(real(context, affinity, num_affinity, flags, device))
}

CUresult allot_ctx_create_v4(allot_ctx_create_v4_fn real, CUcontext *context, void *params,
                             unsigned flags, CUdevice device)
{
    CREATED(real(context, params, flags, device))
}

CUresult allot_ctx_destroy(allot_ctx_destroy_fn real, CUcontext context)
{
    allot_thing thing;
    allot_turn_forget(context);
    pthread_mutex_lock(&handles);
    CUresult outcome = real(context);
    int is_ours =
        outcome == CUDA_SUCCESS && allot_lose(CONTEXT, (uint64_t)(uintptr_t)context, &thing);
    if (is_ours)
        allot_forget_context(context);
    pthread_mutex_unlock(&handles);
    if (is_ours)
        end(thing.gpu);
    return outcome;
}
