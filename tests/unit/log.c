/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: prefixes, levels, ranks, the log file, and the end of a tool. Each case runs in a child
 * whose stderr is caught, because the environment is read once. */
#include <pf/error.h>
#include <pf/file.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/progress.h>
#include <pf/time.h>
#include <pf/tool.h>

#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char caught[8192];

/* Run body in a child with PF_LOG and such from `environment` ("A=1 B=2"); its stderr lands in
 * caught, its exit status is returned. */
static int run(const char *environment, int (*body)(void))
{
    int ends[2], status;
    size_t n = 0;

    fflush(NULL);
    if (pipe(ends) != 0) {
        return -1;
    }
    const pid_t child = fork();
    if (child == 0) {
        char text[256], *save = NULL;
        snprintf(text, sizeof text, "%s", environment);
        for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
            putenv(w);
        }
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        const int code = body();
        fflush(NULL);
        _exit(code);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], caught + n, sizeof caught - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    caught[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int all_levels(void)
{
    pf_log_set_program("pf-x");
    pf_log_error("comm", "e%d", 1);
    pf_log_warn("comm", "w");
    pf_log_info(NULL, "i");
    pf_log_debug("comm", "d");
    pf_log_debug("ckpt", "k");
    pf_log_trace("comm", "t");
    return 0;
}

static int with_ranks(void)
{
    pf_log_set_program("pf-x");
    pf_log_set_rank(3, 4);
    pf_log_info("comm", "mine");
    pf_log_info0("comm", "not mine");
    pf_log_set_rank(0, 4);
    pf_log_info0("comm", "all of us");
    pf_log_warn("comm", "only me");
    pf_log_set_rank(0, 1);
    pf_log_info("comm", "alone");
    return 0;
}

static int quiet_and_rude(void)
{
    pf_log_set_level(PF_LOG_ERROR);
    pf_log_info(NULL, "unheard");
    errno = 42;
    pf_log_error(NULL, "a\nb\033[2J");
    return errno == 42 ? 0 : 1;
}

static void lines(void)
{
    run("A=1", all_levels);
    ok(strcmp(caught, "pf-x: e1\npf-x: warning: w\npf-x: i\n") == 0, "the default level is info");
    run("PF_LOG=trace", all_levels);
    ok(strstr(caught, "pf-x: debug: comm: d\npf-x: debug: ckpt: k\npf-x: trace: comm: t\n"),
       "PF_LOG=trace shows all, with subsystems");
    run("PF_LOG=debug PF_LOG_SUBSYS=ckpt,data", all_levels);
    ok(strcmp(caught, "pf-x: e1\npf-x: warning: w\npf-x: i\npf-x: debug: ckpt: k\n") == 0,
       "PF_LOG_SUBSYS picks from debug, not from the rest");
    run("PF_LOG=error", all_levels);
    ok(strcmp(caught, "pf-x: e1\n") == 0, "PF_LOG=error");
    run("PF_LOG=loud", all_levels);
    ok(strstr(caught, "'loud' is not") && strstr(caught, "pf-x: i\n"), "a wrong level is told");
    run("A=1", with_ranks);
    ok(strcmp(caught, "pf-x: rank 3: mine\npf-x: all of us\npf-x: rank 0: warning: only me\n"
                      "pf-x: alone\n") == 0,
       "ranks are named where there are several");
    ok(run("A=1", quiet_and_rude) == 0 && strcmp(caught, "pf: a\\x0ab\\x1b[2J\n") == 0,
       "control characters are escaped, errno is kept");
    run("PF_LOG=debug", quiet_and_rude);
    ok(strstr(caught, "unheard"), "PF_LOG wins over the program's level");
}

static void log_file(void)
{
    char dir[] = "/tmp/pf-log-XXXXXX", environment[128];
    struct pf_str_list names = {0};
    char *text = NULL, *path;
    size_t len = 0;

    if (!mkdtemp(dir)) {
        skip("PF_LOG_FILE", "no scratch directory");
        return;
    }
    snprintf(environment, sizeof environment, "PF_LOG=debug PF_LOG_FILE=%s/%%h.%%p.%%%%", dir);
    run(environment, all_levels);
    ok(strcmp(caught, "pf-x: e1\npf-x: warning: w\npf-x: i\n") == 0,
       "with a file, debug leaves stderr");
    ok(pf_dir_list(dir, &names) == 0 && names.n == 1 && pf_str_ends_with(names.items[0], ".%") &&
           !strstr(names.items[0], "%h") && !strstr(names.items[0], "%p"),
       "the name is expanded");
    path = pf_path_join(dir, names.n ? names.items[0] : "none");
    ok(pf_file_read_all(path, 0, &text, &len) == 0 && strstr(text, "Z pf-x: e1\n") &&
           strstr(text, "Z pf-x: debug: ckpt: k\n"),
       "the file has everything, with times");
    pf_free(text);
    pf_free(path);
    pf_str_list_release(&names);
    pf_rmtree(dir);
    run("PF_LOG_FILE=/nonexistent/x", all_levels);
    ok(strstr(caught, "cannot open PF_LOG_FILE") && strstr(caught, "pf-x: i\n"),
       "a file that cannot be made is told once");
}

static int ends_well(void)
{
    pf_tool_start("pf-x");
    return pf_tool_finish(0);
}

static int ends_badly(void)
{
    pf_tool_start("pf-x");
    return pf_tool_finish(pf_fail(PF_EFORMAT, "'%s' is damaged", "f"));
}

static int differs(void)
{
    pf_error_clear();
    return pf_tool_finish(PF_EDIFFER);
}

static int writes_to(const char *path)
{
    const int fd = open(path, O_WRONLY);

    pf_tool_start("pf-x");
    dup2(fd, STDOUT_FILENO);
    printf("result\n");
    return pf_tool_finish(0);
}

static int fills_disk(void)
{
    return writes_to("/dev/full");
}

static int loses_reader(void)
{
    int ends[2];

    pf_tool_start("pf-x");
    if (pipe(ends) != 0) {
        return 99;
    }
    close(ends[0]);
    dup2(ends[1], STDOUT_FILENO);
    printf("result\n");
    return pf_tool_finish(0);
}

static void ends_of_tools(void)
{
    ok(run("A=1", ends_well) == 0 && !*caught, "success is silent");
    ok(run("A=1", ends_badly) == 3 && strcmp(caught, "pf-x: 'f' is damaged\n") == 0,
       "a failure is one line and its status");
    ok(run("A=1", differs) == 1 && !*caught, "a difference is silent");
    if (access("/dev/full", W_OK) == 0) {
        ok(run("A=1", fills_disk) == 4 && strstr(caught, "cannot write standard output"),
           "lost output is a failure");
    } else {
        skip("lost output is a failure", "no /dev/full");
    }
    ok(run("A=1", loses_reader) == 4 && !*caught, "a reader that left gets no message");
}

static int shows_plain_progress(void)
{
    struct pf_progress p;

    pf_progress_init(&p, "copying", PF_PROGRESS_BYTES, 1000, true);
    pf_progress_update(&p, 100); /* too early for a line */
    p.plain_interval = 0;
    pf_progress_update(&p, 500);
    pf_progress_finish(&p);
    pf_progress_init(&p, "off", PF_PROGRESS_COUNT, 10, false);
    p.plain_interval = 0;
    pf_progress_update(&p, 5);
    pf_progress_finish(&p);
    return 0;
}

static void progress(void)
{
    struct pf_progress p;
    char line[128];

    pf_progress_init(&p, "copying", PF_PROGRESS_BYTES, (uint64_t)3 << 30, false);
    p.done = (uint64_t)1 << 30;
    pf_progress_format(&p, p.started + 4, line, sizeof line);
    ok(strcmp(line, "copying:  33% 1.0 GiB of 3.0 GiB, 256 MiB/s, 0:08 left") == 0, "%s", line);
    p.done = 1 << 20;
    pf_progress_format(&p, p.started + 4, line, sizeof line);
    ok(strcmp(line, "copying:   0% 1.0 MiB of 3.0 GiB, 256 KiB/s, 3:24:44 left") == 0, "%s", line);
    pf_progress_init(&p, "steps", PF_PROGRESS_COUNT, 0, false);
    p.done = 30;
    pf_progress_format(&p, p.started + 4, line, sizeof line);
    ok(strcmp(line, "steps: 30, 7.5/s") == 0, "%s", line);
    pf_progress_format(&p, p.started, line, sizeof line);
    ok(strcmp(line, "steps: 30, 0/s") == 0, "%s", line);
    pf_progress_init(&p, "training", PF_PROGRESS_COUNT, 100, false);
    p.done = 25;
    pf_progress_format_bar(&p, p.started + 10, 79, line, sizeof line);
    ok(strcmp(line, "training [#######.......................]  25% 25 of 100, 2.5/s, 0:30 left") ==
           0,
       "%s", line);
    pf_progress_format_bar(&p, p.started + 10, 52, line, sizeof line);
    ok(strcmp(line, "training [##......]  25% 25 of 100, 2.5/s, 0:30 left") == 0, "%s", line);
    pf_progress_format_bar(&p, p.started + 10, 51, line, sizeof line);
    ok(strcmp(line, "training:  25% 25 of 100, 2.5/s, 0:30 left") == 0, "no room: %s", line);
    p.done = 100;
    pf_progress_format_bar(&p, p.started + 10, 52, line, sizeof line);
    ok(strncmp(line, "training [########] 100%", 24) == 0, "done: %s", line);
    /* One a second for 50 s, then ten: the rate follows within some tens of seconds. */
    pf_progress_init(&p, "training", PF_PROGRESS_COUNT, 1000, false);
    for (int i = 1; i <= 50; i++) {
        p.done++;
        pf_progress_rate(&p, p.started + i);
    }
    const double slow = p.rate;
    for (int i = 51; i <= 90; i++) {
        p.done += 10;
        pf_progress_rate(&p, p.started + i);
    }
    ok(slow > 0.99 && slow < 1.01 && p.rate > 9.5 && p.rate < 10,
       "the rate is smoothed: %.2f, %.2f", slow, p.rate);
    run("A=1", shows_plain_progress);
    ok(strstr(caught, "pf: copying:  50%") && !strchr(caught, '\r') && !strstr(caught, "off") &&
           !strstr(caught, "10%"),
       "no terminal: plain lines, only when due");
}

static void clocks(void)
{
    char buf[PF_TIME_ISO_BYTES];
    const double start = pf_time_monotonic();

    ok(strcmp(pf_time_iso_at(951782400.5, buf), "2000-02-29T00:00:00Z") == 0, "%s", buf);
    ok(strlen(pf_time_iso(buf)) == 20 && pf_time_wall() > 1.7e9, "now is %s", buf);
    pf_time_sleep(0.02);
    ok(pf_time_monotonic() - start >= 0.02, "sleep sleeps");
}

int main(void)
{
    unsetenv("PF_LOG");
    unsetenv("PF_LOG_FILE");
    unsetenv("PF_LOG_SUBSYS");
    lines();
    log_file();
    ends_of_tools();
    progress();
    clocks();
    return done();
}
