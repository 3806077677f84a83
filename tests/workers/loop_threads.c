/* Runs loops on the threads of src/tencost/workers/loop_threads.c, which is compiled into this; see test_threads.py.
   Each part ends the process with its number where a share was not computed, or twice. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define MOST 64

typedef struct {
  int counts[MOST];
  int wanted;
  unsigned ns;
  int nested;
} Job;

static int count(int number, Group* group, void* data) {
  Job* job = (Job*)data;
  job->wanted = group->num_task; /* the same of all shares, written by one */
  return 0 * number;
}

static int compute_share(int number, Group* group, void* data) {
  Job* job = (Job*)data;
  (void)group;
  if (job->ns) {
    struct timespec time = {0, (long)(job->ns * (1 + number))};
    nanosleep(&time, NULL);
  }
  if (job->nested) {
    Job inner;
    memset(&inner, 0, sizeof(inner));
    tencost_launch(compute_share, &inner, 0);
    if (inner.counts[0] != 1) return -1; /* alone, on this thread */
  }
  __atomic_fetch_add(&job->counts[number], 1, __ATOMIC_RELAXED);
  return number == job->wanted ? -1 : 0;
}

static int shares_are_right(unsigned ns, int nested, int expected) {
  Job job;
  memset(&job, 0, sizeof(job));
  job.ns = ns;
  job.nested = nested;
  job.wanted = -1;
  if (tencost_launch(compute_share, &job, 0) != 0) return 0;
  for (int number = 0; number < MOST; ++number)
    if (job.counts[number] != (number < expected)) return 0;
  return 1;
}

static void* call_often(void* wrong) {
  for (int turn = 0; turn < 300; ++turn) {
    Job job;
    memset(&job, 0, sizeof(job));
    job.wanted = -1;
    tencost_launch(compute_share, &job, 0);
    int total = 0;
    for (int number = 0; number < MOST; ++number) total += job.counts[number];
    /* all shares, or one alone where another caller had the threads */
    if (total != 1 && total != threads) __atomic_store_n((int*)wrong, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int argc, char** argv) {
  int expected = argc > 1 ? atoi(argv[1]) : 1;
  Job job;
  memset(&job, 0, sizeof(job));
  if (expected == 1) return tencost_launch(count, &job, 0) != 0 || job.wanted != 1;
  for (int turn = 0; turn < 2000; ++turn)
    if (!shares_are_right(0, 0, expected)) return 1;
  for (int turn = 0; turn < 30; ++turn) { /* longer than threads stay awake */
    struct timespec time = {0, 3 * SPIN_NS};
    nanosleep(&time, NULL);
    if (!shares_are_right(turn % 2 ? 4 * SPIN_NS : 0, 0, expected)) return 2;
  }
  if (!shares_are_right(0, 1, expected)) return 3;
  job.wanted = 1; /* this share fails */
  if (tencost_launch(compute_share, &job, 0) != -1) return 4;
  if (!shares_are_right(0, 0, expected)) return 4;
  pthread_t callers[3];
  int wrong = 0, status = 0;
  for (int number = 0; number < 3; ++number) pthread_create(&callers[number], NULL, call_often, &wrong);
  for (int number = 0; number < 3; ++number) pthread_join(callers[number], NULL);
  if (wrong) return 5;
  pid_t child = fork();
  if (child == 0) _exit(shares_are_right(0, 0, expected) ? 0 : 1);
  waitpid(child, &status, 0);
  if (status != 0 || !shares_are_right(0, 0, expected)) return 6;
  return 0;
}
