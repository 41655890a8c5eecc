/* Where a CUDA call waits while its session's memory is away (the format: limits.py). */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "hooks.h"

#define LOOK_EVERY_NS 1000000l
/* The agent may be away, or may have been busy. */
#define ASK_AGAIN_NS 1000000000ull

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void ask(allot_session *session)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[256];
    const char *path = session->limits->gate;
    if (!path[0] || strlen(path) >= sizeof address.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int size = snprintf(text, sizeof text, "allot-gate/1 %s %d\n", session->limits->session,
                        (int)getpid());
    if (sendto(fd, text, (size_t)size, 0, (struct sockaddr *)&address, sizeof address) == size)
        atomic_fetch_add(&session->account.map->num_wakes, 1);
    close(fd);
}

static int wait_for_gpu(allot_session *session, _Atomic uint32_t *state)
{
    const struct timespec pause = {0, LOOK_EVERY_NS};
    uint64_t asked = 0;
    uint32_t now;
    atomic_fetch_add(&session->account.map->num_held, 1);
    while ((now = atomic_load(state)) != ALLOT_RUNNING && now != ALLOT_FAILED) {
        if (now_ns() - asked >= ASK_AGAIN_NS) {
            asked = now_ns();
            ask(session);
        }
        nanosleep(&pause, NULL);
    }
    atomic_fetch_sub(&session->account.map->num_held, 1);
    return now == ALLOT_FAILED ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

int allot_gate(void)
{
    allot_session *session = allot_session_get();
    if (!session)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    /* In this order: an agent that has locked us looks at the time once more afterwards. */
    atomic_store(&session->account.map->last_call, now_ns());
    _Atomic uint32_t *state = &session->account.map->state;
    if (__builtin_expect(atomic_load(state) == ALLOT_RUNNING, 1))
        return CUDA_SUCCESS;
    return wait_for_gpu(session, state);
}
