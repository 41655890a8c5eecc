/* Takes and gives back memory of a region without end, until somebody kills it.
 *
 *     hammer REGION LIMIT SEED [own-pid-namespace]
 *
 * Prints its pid as its parent sees it. Ends with 3 once it sees more granted than the limit, with 5
 * once less is counted for it than it holds.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../scheduling/agent/fraction/native/region.h"

#define MOST_S 600

static allot_account account;

static uint64_t collect(uint64_t *seen)
{
    uint64_t sum = 0;
    uint32_t high = account.map->high_slot;
    for (uint32_t slot = 0; slot < high && slot < 64; slot++)
        sum += seen[slot] = atomic_load(&account.map->used[0][slot]);
    return sum;
}

/* A sum over slots that change meanwhile says nothing: only two readings that are the same do. */
static int is_broken(uint64_t limit)
{
    uint64_t one[64] = {0}, two[64] = {0};
    return collect(one) > limit && collect(two) > limit && memcmp(one, two, sizeof one) == 0;
}

static void *work(void *argument)
{
    uint64_t limit = *(uint64_t *)argument, held[16] = {0}, sum = 0;
    unsigned seed = (unsigned)(uintptr_t)&held ^ (unsigned)getpid() * 2654435761u ^ (unsigned)rand();
    for (;;) {
        int i = rand_r(&seed) % 16;
        if (held[i]) {
            sum -= held[i];
            allot_account_release(&account, 0, held[i]);
            held[i] = 0;
        } else {
            uint64_t n = (uint64_t)rand_r(&seed) % (limit / 3) + 1;
            if (allot_account_reserve(&account, 0, n, limit))
                sum += held[i] = n;
        }
        if (allot_account_own(&account, 0) < sum)
            _exit(5);
        if (is_broken(limit))
            _exit(3);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *why = "";
    uint64_t limit = strtoull(argv[2], NULL, 10);
    pthread_t thread;
    srand((unsigned)atoi(argv[3]));
    /* Nobody else ends us once the tests themselves were killed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(MOST_S);
    if (argc > 4) {
        if (unshare(CLONE_NEWPID) != 0)
            return 4;
        pid_t child = fork();
        if (child) {
            int status;
            printf("%d\n", (int)child);
            fflush(stdout);
            waitpid(child, &status, 0);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(MOST_S);
    } else {
        printf("%d\n", (int)getpid());
        fflush(stdout);
    }
    if (allot_account_open(&account, argv[1], &why) != 0 || allot_account_join(&account) != 0)
        return 2;
    pthread_create(&thread, NULL, work, &limit);
    work(&limit);
}
