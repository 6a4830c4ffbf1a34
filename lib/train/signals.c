/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that ask a run to stop. None has a handler: oneDNN's generated code uses the stack pointer
 * for its own ends, and a handler's frame would be written over live data. All are held back in every
 * thread; SIGTERM and SIGUSR1 are taken between steps. SIGINT is a person at the keyboard, who is to
 * be heard at once before training and at the second time, so a thread of its own waits for it.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/log.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Does a run that can save look at `interrupted`? Has SIGINT come in it? */
static atomic_bool listening, interrupted;

static void set_of(sigset_t *set_out, int a, int b)
{
    sigemptyset(set_out);
    sigaddset(set_out, a);
    sigaddset(set_out, b);
}

/* End as if the signal had never been held back, so that a shell sees what ended the process. */
static void die_of(int number)
{
    sigset_t set;

    set_of(&set, number, number);
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* waits, as it is held back here */
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    abort(); /* not reached */
}

static void *await_interrupts(void *unused)
{
    sigset_t set;
    int number;

    set_of(&set, SIGINT, SIGINT);
    for (;;) {
        if (sigwait(&set, &number) != 0) {
            continue;
        }
        if (!atomic_load(&listening) || atomic_exchange(&interrupted, true)) {
            die_of(SIGINT);
        }
        pf_log_info0(NULL, "saving and stopping after this step; Ctrl-C again ends at once");
    }
    return unused;
}

/* A shell's background process ignores SIGINT, and goes on doing so. */
static bool is_ignored(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

int pf_trainer_hold_signals(void)
{
    sigset_t set;
    pthread_t thread;

    set_of(&set, SIGTERM, SIGUSR1);
    if (!is_ignored(SIGINT)) {
        sigaddset(&set, SIGINT);
    }
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) {
        return pf_fail_errno(PF_EIO, "cannot hold signals back");
    }
    if (sigismember(&set, SIGINT) == 0) {
        return 0;
    }
    const int why = pthread_create(&thread, NULL, await_interrupts, NULL);
    return why == 0 && pthread_detach(thread) == 0
               ? 0
               : pf_fail(PF_EIO, "cannot start a thread that waits for Ctrl-C (%d)", why);
}

void train_signals_listen(bool on)
{
    atomic_store(&listening, on);
}

bool train_signals_came(void)
{
    const struct timespec at_once = {0};
    bool came = atomic_load(&interrupted);
    sigset_t set;

    set_of(&set, SIGTERM, SIGUSR1);
    while (sigtimedwait(&set, NULL, &at_once) > 0) {
        came = true;
    }
    return came;
}
